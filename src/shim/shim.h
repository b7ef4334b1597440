// The shim: one process a job, its parent and subreaper. It opens the job's log
// for the program, or gives it a terminal, takes its exit code, and outlives whoever started it.
// One thread; it only ever waits in one poll, for a child's end, for a word from its starter, and
// for the terminal and those who are attached to it. Without it the job runs on; only how it ends
// is known to nobody then. A job with a terminal is hung up with it, and in a pid namespace of the
// job's own the shim is its init: there the job ends with it.
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
  std::map<int, int> criu_fds;    // restore: number in CRIU -> ours
  // For the program alone; see LaunchSpec.
  std::map<std::string, std::string> env;
  // restore: in a pid namespace of its own, whose init the shim is.
  bool new_pidns = false;
  int first_pid = 0;  // of CRIU there; 0: any
  // A terminal of the job's own, of this size, in the place of /dev/null and the log.
  std::optional<WindowSize> terminal;
  int client = -1;  // descriptor of one who is attached to it from the start; -1: nobody
  // run: descriptor of a pipe or file that becomes the program's standard input; -1: /dev/null.
  int input = -1;
  uint64_t keep_log = 0;  // bytes of the log's end that are kept; 0: all of it
};
// `stasis-shim run|restore --job-dir DIR --log FILE [--fd K=N]... [--env K=V]... [--new-pidns PID]
// [--terminal ROWSxCOLUMNS [--client N]] [--input N] [--keep-log BYTES] -- CMD ARG...`.
Result<ShimOptions> ParseOptions(const std::vector<std::string>& args);

class Shim {
 public:
  // `pid`: the calling process, as its starter sees it.
  Shim(ShimOptions options, UniqueFd control, pid_t pid)
      : options_(std::move(options)), control_(std::move(control)), self_{{pid}, 0} {}

  // Returns when no process of the job is left: the shim's exit code.
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
  // False when the half-restored tree has been given up.
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
  process::ProcessId self_;  // as our starter sees it, and root_ too
  process::ProcessId root_;
  pid_t root_here_ = 0;  // the root's number among our children
  std::optional<int> root_status_;
  pid_t criu_ = 0;          // 0: none, or it has ended
  bool committed_ = false;  // the tree is the job's
  bool recorded_ = false;   // exit.json is there
  bool childless_ = false;
  std::map<pid_t, int> ended_;  // restore, before the root is named: it may be among these
};

}  // namespace stasis::shim
