// stasis daemon: starts stasisd, shows its status, and stops it.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/clock.h"
#include "base/file.h"
#include "base/install_layout.h"
#include "base/subprocess.h"
#include "cli/job_view.h"
#include "cli/message_json.h"
#include "cli/operation.h"
#include "cli/table.h"

namespace stasis::cli {
namespace {

constexpr std::chrono::seconds kStartTimeout{20};
constexpr off_t kMostOfLog = 2000;

// Returns the end of the log, with the last message of a daemon that failed to start.
std::string EndOf(const std::string& log) {
  auto text = ReadFile(log);
  if (!text) return "";
  if (text->size() > kMostOfLog) text->erase(0, text->size() - kMostOfLog);
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return *text;
}

// Maps the daemon's exit code, which has the same meaning as that of a command, to an error code.
Code CodeOf(int status) {
  switch (WIFEXITED(status) ? WEXITSTATUS(status) : 0) {
    case 2:
      return Code::kInvalidArgument;
    case 3:
      return Code::kNotFound;
    case 4:
      return Code::kPermissionDenied;
    case 7:
      return Code::kAborted;
    default:
      return Code::kUnavailable;
  }
}

Result<std::string> Program() {
  STASIS_ASSIGN(std::string root, InstallRoot());
  return root + "/bin/stasisd";
}

Outcome InForeground() {
  STASIS_ASSIGN(const std::string program, Program());
  ::execl(program.c_str(), program.c_str(), nullptr);
  return FailErrno(errno, "start " + program);
}

Outcome Start(const Globals& globals, bool foreground) {
  if (foreground) return InForeground();
  if (auto running = api::Client::OpenDaemon(globals.settings())) {
    STASIS_ASSIGN(const v1::DaemonStatus status, running->GetStatus());
    PrintResult(globals, fmt::format("a daemon is already running: process {}", status.pid()),
                {{"pid", status.pid()}, {"socket", status.socket()}, {"started", false}});
    return 0;
  }
  STASIS_ASSIGN(const std::string program, Program());
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  STASIS_ASSIGN(const std::string socket, config::DaemonSocket(globals.settings()));
  const std::string log = paths.run + "/stasisd.log";
  STASIS_ASSIGN(UniqueFd output,
                Open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW, 0600));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  UniqueFd ready(ends[0]), told(ends[1]);
  SpawnOptions spawn;
  spawn.argv = {program, "--ready-fd", "3", "--log-file", log};
  spawn.fds = {{2, output.get()}, {3, told.get()}};
  spawn.new_session = true;
  spawn.working_directory = "/";
  STASIS_ASSIGN(Subprocess daemon, Subprocess::Spawn(spawn));
  told.Reset();
  pollfd wait{ready.get(), POLLIN, 0};
  const Deadline deadline = Deadline::In(kStartTimeout);
  char word[16];
  if (TEMP_FAILURE_RETRY(::poll(&wait, 1, deadline.PollTimeout())) == 1 &&
      TEMP_FAILURE_RETRY(::read(ready.get(), word, sizeof word)) > 0) {
    PrintResult(globals, fmt::format("the daemon is running: process {}", daemon.pid()),
                {{"pid", daemon.pid()}, {"socket", socket}, {"started", true}});
    return 0;
  }
  auto ended = daemon.Wait(Deadline::In(std::chrono::seconds(1)));
  if (!ended) {
    daemon.Kill(SIGKILL);
    (void)daemon.Wait();
    return Fail(Code::kDeadlineExceeded, "the daemon did not start in time", "its log is " + log);
  }
  return Fail(CodeOf(*ended), Domain::kUsage, 0,
              "the daemon " + DescribeWaitStatus(*ended) + ": " + EndOf(log), "its log is " + log);
}

Outcome PrintStatus(const Globals& globals) {
  STASIS_ASSIGN(auto client, api::Client::OpenDaemon(globals.settings()));
  STASIS_ASSIGN(const v1::DaemonStatus status, client.GetStatus());
  STASIS_ASSIGN(const v1::ListOperationsResponse list, client.ListOperations());
  const int64_t now = NowMs();
  std::string text =
      fmt::format("stasisd {}, process {}, user {}, since {}{}\nsocket {}\n", status.version(),
                  status.pid(), status.uid(), FormatAge(status.started_ms(), now),
                  status.draining() ? ", draining" : "", status.socket());
  if (!status.listen().empty()) text += "TCP " + status.listen() + "\n";
  if (!status.metrics().empty()) text += "metrics http://" + status.metrics() + "/metrics\n";
  text += fmt::format("{} operations\n", status.operations());
  std::vector<std::vector<std::string>> rows = {
      {"OPERATION", "VERB", "TARGET", "USER", "SINCE", "PHASE"}};
  for (const v1::Operation& operation : list.operations()) {
    rows.push_back({operation.id(), operation.verb(), operation.target(),
                    std::to_string(operation.uid()), FormatAge(operation.begun_ms(), now),
                    operation.phase() + (operation.cancelled() ? " (cancelled)" : "")});
  }
  if (!list.operations().empty()) text += FormatTable(rows);
  nlohmann::json document = MessageJson(status);
  document.update(MessageJson(list));  // replaces the number of operations with their list
  PrintResult(globals, text, document);
  return 0;
}

Outcome Drain(const Globals& globals, double timeout_s) {
  STASIS_ASSIGN(auto client, api::Client::OpenDaemon(globals.settings()));
  STASIS_ASSIGN(const v1::DaemonStatus status, client.GetStatus());
  STASIS_ASSIGN(const bool ended, client.Drain(timeout_s));
  PrintResult(globals,
              ended ? "drained: the daemon has stopped, jobs continue"
                    : "drained: the daemon is stopping, jobs continue",
              {{"pid", status.pid()}, {"drained", true}, {"ended", ended}});
  return 0;
}

}  // namespace

void RegisterDaemon(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("daemon", "Start the daemon, show its status, and stop it");
  verb->require_subcommand(1);
  auto foreground = std::make_shared<bool>(false);
  auto start = verb->add_subcommand("start", "Start the daemon unless it is already running");
  start->add_flag("--foreground", *foreground, "Run in the foreground, for service managers");
  start->callback(
      [=] { select([=](const Globals& globals) { return Start(globals, *foreground); }); });
  auto status =
      verb->add_subcommand("status", "Show the daemon's status and the operations in progress");
  status->callback([=] { select(PrintStatus); });
  auto timeout = std::make_shared<double>(0);
  auto drain = verb->add_subcommand(
      "drain", "Accept no more operations, and stop when those in progress have ended");
  drain->add_option("--timeout", *timeout, "Limit in seconds (default: none)")
      ->range(0.001, 7 * 86400.0);
  drain->callback(
      [=] { select([=](const Globals& globals) { return Drain(globals, *timeout); }); });
  // Other tools have `check` as a subcommand of `daemon`.
  RegisterCheck(verb, select);
  verb->get_subcommand("check")->group("");
}

}  // namespace stasis::cli
