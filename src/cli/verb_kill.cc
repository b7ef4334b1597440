#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <memory>

#include "base/deadline.h"
#include "cli/verb.h"
#include "jobs/store.h"
#include "process/tree.h"

namespace stasis::cli {
namespace {

constexpr auto kKillTimeout = std::chrono::seconds(10);

struct Options {
  std::string job;
  std::string signal = "TERM";
  bool only = false;
};

struct SignalRow {
  std::string_view name;
  int number;
};
constexpr SignalRow kSignals[] = {
    {"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"ABRT", SIGABRT}, {"KILL", SIGKILL},
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"PIPE", SIGPIPE}, {"ALRM", SIGALRM}, {"TERM", SIGTERM},
    {"CHLD", SIGCHLD}, {"CONT", SIGCONT}, {"STOP", SIGSTOP}, {"TSTP", SIGTSTP}, {"WINCH", SIGWINCH},
};

Result<int> ParseSignal(std::string_view text) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0 && number < NSIG) {
    return number;
  }
  std::string_view name = text.starts_with("SIG") ? text.substr(3) : text;
  for (const SignalRow& row : kSignals) {
    if (row.name == name) return row.number;
  }
  return FailUsage(fmt::format("'{}' is not a signal", text), "its number always works");
}

struct Receiver {
  process::ProcessId id;
  UniqueFd pidfd;
};

// The root first, so that it cannot mistake its children's end for something else.
std::vector<Receiver> Receivers(const jobs::Job& job, bool only_root) {
  std::vector<process::HostPid> pids;
  if (job.processes && process::IsAlive(job.processes->root)) {
    pids.push_back(job.processes->root.pid);
    auto tree = process::ReadTree(job.processes->root.pid);
    if (tree && !only_root) pids = tree->pids();
  }
  if (!only_root) {
    for (process::HostPid pid : jobs::BackgroundProcesses(job)) pids.push_back(pid);
  }
  std::vector<Receiver> receivers;
  for (process::HostPid pid : pids) {
    auto stat = process::ReadStat(pid);
    if (!stat || !process::IsAlive(stat->id)) continue;
    auto pidfd = process::OpenPidfd(stat->id);
    if (pidfd) receivers.push_back({stat->id, std::move(*pidfd)});
  }
  return receivers;
}

Outcome Kill(const Globals& globals, const Options& options) {
  STASIS_ASSIGN(int signal, ParseSignal(options.signal));
  STASIS_ASSIGN(Paths paths, OpenPaths());
  jobs::Store store(paths.jobs());
  size_t reached = 0;
  Deadline deadline = Deadline::In(kKillTimeout);
  for (;;) {
    STASIS_ASSIGN(jobs::Job job, store.Load(options.job));
    std::vector<Receiver> receivers = Receivers(job, options.only);
    if (receivers.empty() && reached == 0) {
      return Fail(Code::kFailedPrecondition, fmt::format("no process of job {} runs: it is {}",
                                                         job.id, jobs::StateName(job.state)));
    }
    for (const Receiver& receiver : receivers) {
      if (::syscall(SYS_pidfd_send_signal, receiver.pidfd.get(), signal, nullptr, 0) == 0) {
        ++reached;
      } else if (errno != ESRCH) {
        return FailErrno(errno, "send a signal to process " + ToString(receiver.id.pid));
      }
    }
    // What they were starting when they were hit is found by looking again.
    if (signal != SIGKILL || receivers.empty()) break;
    for (const Receiver& receiver : receivers) {
      pollfd end{receiver.pidfd.get(), POLLIN, 0};
      if (TEMP_FAILURE_RETRY(::poll(&end, 1, deadline.PollTimeout())) == 0) {
        return Fail(Code::kDeadlineExceeded,
                    "process " + ToString(receiver.id.pid) + " was killed but does not end");
      }
    }
  }
  PrintResult(globals, "", {{"id", options.job}, {"signal", signal}, {"processes", reached}});
  return 0;
}

}  // namespace

void RegisterKill(CLI::App& app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand("kill", "Send a signal to all processes of a job");
  verb->add_option("JOB", options->job, "The job")->required();
  verb->add_option("-s,--signal", options->signal, "Its name or number (default: TERM)");
  verb->add_flag("--only", options->only, "To the job's first process only");
  verb->callback([=] { select([=](const Globals& globals) { return Kill(globals, *options); }); });
}

}  // namespace stasis::cli
