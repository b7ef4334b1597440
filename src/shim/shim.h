// The shim: one process per job, its parent and subreaper. It opens the log or terminal for the
// program, collects its exit code, and outlives the process that started it. It has one thread,
// which waits in one poll for child exits, the starter, the terminal and its clients. If the shim
// is killed the job runs on, and only its exit status is lost. Exceptions: a job with a terminal
// gets SIGHUP, and a job in its own pid namespace is killed, because the shim is the init process
// there.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"
#include "shim/log_bound.h"
#include "shim/output_log.h"
#include "shim/records.h"
#include "shim/shim_protocol.h"
#include "shim/terminal.h"

namespace stasis::shim {

struct ShimOptions {
  enum class Mode { kRun, kRestore } mode = Mode::kRun;
  std::string job_dir;
  std::string log;
  std::vector<std::string> argv;  // the job's program, or CRIU
  std::map<int, int> criu_fds;    // restore: number in CRIU -> number here
  // Environment variables for the program only; see LaunchSpec.
  std::map<std::string, std::string> env;
  // restore: create a pid namespace, with the shim as its init process.
  bool new_pidns = false;
  int first_pid = 0;  // pid of CRIU there; 0: any
  // restore: descriptor of the starter's /proc, if the shim was started in another pid namespace;
  // -1: it was not.
  int proc = -1;
  // Size of a new terminal for the job, which replaces /dev/null and the log.
  std::optional<WindowSize> terminal;
  int client = -1;  // descriptor of a client attached from the start; -1: none
  // run: descriptor of a pipe or file for standard input; -1: /dev/null.
  int input = -1;
  uint64_t keep_log = 0;  // size of the end of the log to keep, in bytes; 0: keep everything
};
// Parses `stasis-shim run|restore --job-dir DIR --log FILE [--fd K=N]... [--env K=V]...
// [--new-pidns PID | --proc N] [--terminal ROWSxCOLUMNS [--client N]] [--input N] [--keep-log
// BYTES] -- CMD ARG...`.
Result<ShimOptions> ParseOptions(const std::vector<std::string>& args);

class Shim {
 public:
  // `pid` is the pid of this process as the starter sees it.
  Shim(ShimOptions options, UniqueFd control, pid_t pid)
      : options_(std::move(options)), control_(std::move(control)), self_{{pid}, 0} {}

  // Runs until no process of the job is left. Returns the shim's exit code.
  int Main();

 private:
  Status Start(Step* step);
  Status OpenTerminal();
  Status StartProgram(int null_fd, Step* step);
  Status StartCriu(int null_fd, Step* step);

  int Loop();
  void ReapChildren();
  void OnChildEnd(pid_t pid, int wait_status);
  void OnRootEnd(int wait_status);
  void WriteDownEnd(int wait_status);
  // Returns false if the partly restored tree was given up.
  bool ServeControl();
  void Commit();
  void Abort();
  void Send(const Message& message);

  ShimOptions options_;
  UniqueFd control_;
  UniqueFd signals_;
  OutputLog log_;
  LogBound bound_;
  Terminal terminal_;
  JobFolder folder_;
  process::ProcessId self_;  // in the starter's pid namespace, like root_
  process::ProcessId root_;
  pid_t root_here_ = 0;  // pid of the root in this namespace
  std::optional<int> root_status_;
  pid_t criu_ = 0;          // 0: none, or exited
  bool committed_ = false;  // the tree belongs to the job
  bool recorded_ = false;   // exit.json was written
  bool childless_ = false;
  // restore: the wait statuses of children that exited before the starter named the root, which may
  // be one of them.
  std::map<pid_t, int> ended_;
};

}  // namespace stasis::shim
