#include "cli/attach.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "cli/attach_terminal.h"
#include "jobs/log_reader.h"
#include "jobs/watch.h"
#include "shim/shim_protocol.h"

namespace stasis::cli {
namespace {

// Signals that are not forwarded: faults, child and write events of this process, and job control,
// which must stop this process and not the job.
constexpr int kOwnSignals[] = {SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGTRAP, SIGSYS,  SIGABRT,
                               SIGCHLD, SIGPIPE, SIGXFSZ, SIGXCPU, SIGTSTP, SIGTTIN, SIGTTOU};

std::string LogToWatch(const jobs::Job& job) {
  return jobs::LogReader(job.log, 0).regular() ? job.log : std::string();
}

Outcome FollowLog(const Globals& globals, const jobs::Store& store, const jobs::Job& start,
                  uint64_t log_offset, bool watch_only, CaughtSignals signals) {
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(store, start.id, LogToWatch(start)));
  jobs::LogReader log(start.log, log_offset);
  std::optional<process::ProcessId> root;
  bool detached = false;
  while (!detached) {
    STASIS_ASSIGN(jobs::Job job, watch.Look());
    // Must follow the look at the state, so that the output of an ended job is complete.
    STASIS_ASSIGN(bool read, log.Copy());
    if (!read) break;
    if (!job.processes) return ExitCodeOf(job);
    if (!root) root = job.processes->root;
    if (auto end = EndOf(globals, job, *root)) return *end;
    STASIS_TRY(watch.Wait(signals.fd(), {}));
    while (int signal = signals.Read()) {
      if (signal == SIGWINCH || signal == SIGCONT) continue;
      detached |= signal == SIGHUP || watch_only;
      if (!detached) PassOn(*root, signal);
    }
  }
  return Detached(globals, start.id);
}

}  // namespace

Result<CaughtSignals> CaughtSignals::Catch() {
  sigset_t set;
  sigfillset(&set);
  for (int signal : kOwnSignals) sigdelset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  CaughtSignals caught;
  caught.fd_.Reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!caught.fd_) return FailErrno(errno, "signalfd");
  return caught;
}

int CaughtSignals::Read() {
  signalfd_siginfo info;
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

tl::unexpected<Error> FailUnknownEnd(const std::string& id, bool adopted) {
  return Fail(Code::kUnavailable, "job " + id + " has ended, and nobody knows how",
              adopted ? "Stasis did not start it: whoever did knows its exit code"
                      : "its shim was killed, or the machine was restarted");
}

void AttachOptions::AddTo(App verb) {
  verb.add_option("--detach-keys", detach_keys,
                  "Keys that leave the job's terminal (default: ctrl-p,ctrl-q; none: no keys)");
}

void PassOn(const process::ProcessId& root, int signal) {
  auto pidfd = process::OpenPidfd(root);
  if (!pidfd) return;
  if (signal != SIGINT && signal != SIGQUIT) {
    ::syscall(SYS_pidfd_send_signal, pidfd->get(), signal, nullptr, 0);
    return;
  }
  // A terminal would send these to the group. The root leads it; the pidfd proves that the pid is
  // still its own.
  ::kill(-root.pid.value, signal);
}

Outcome ExitCodeOf(const jobs::Job& job) {
  if (job.state == jobs::State::kDumped) return shim::kDumpedExitCode;
  if (job.ending) return job.ending->code;
  return FailUnknownEnd(job.id, jobs::IsAdopted(job));
}

std::optional<Outcome> EndOf(const Globals& globals, const jobs::Job& job,
                             const process::ProcessId& root) {
  // Dumped and restored meanwhile.
  if (!job.processes || job.processes->root != root) return shim::kDumpedExitCode;
  if (!jobs::HasEnded(job.state)) return std::nullopt;
  if (job.state == jobs::State::kDumped && job.dumped_image && !globals.quiet) {
    PrintStderr(fmt::format("stasis: job {} was dumped to {}\n", job.id, *job.dumped_image));
  }
  return ExitCodeOf(job);
}

Outcome Detached(const Globals& globals, const std::string& id) {
  if (!globals.quiet) PrintStderr(fmt::format("stasis: detached; job {} goes on\n", id));
  return 0;
}

bool HasTerminal(const jobs::Store& store, const jobs::Job& job) {
  return job.has_shim && PathExists(store.Folder(job.id) + "/" + shim::kTerminalSocket);
}

Outcome Attach(const Globals& globals, const jobs::Store& store, const std::string& id,
               uint64_t log_offset, const AttachOptions& options, CaughtSignals signals) {
  STASIS_ASSIGN(jobs::Job job, store.Load(id));
  if (!HasTerminal(store, job) || !job.processes) {
    return FollowLog(globals, store, job, log_offset, options.watch, std::move(signals));
  }
  return AttachTerminal(globals, store, job, options, std::move(signals));
}

Status CopyLog(const jobs::Store& store, const jobs::Job& job, uint64_t offset, bool follow) {
  jobs::LogReader log(job.log, offset);
  if (!follow) {
    STASIS_TRY(log.Copy());
    return {};
  }
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(store, job.id, LogToWatch(job)));
  for (;;) {
    STASIS_ASSIGN(jobs::Job now, watch.Look());
    STASIS_ASSIGN(bool read, log.Copy());
    // Background processes of the job may still write.
    if (!read || (jobs::HasEnded(now.state) && BackgroundProcesses(now).empty())) return {};
    STASIS_TRY(watch.Wait(-1, {}));
  }
}

}  // namespace stasis::cli
