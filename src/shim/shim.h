// The shim: one process a job, its parent and subreaper. It opens the job's log
// for the program, takes its exit code, and outlives whoever started it. One thread; it only ever
// waits in one poll, for a child's end or for a word from its starter. Without it the job runs on;
// only how it ends is known to nobody then.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"
#include "shim/output_log.h"
#include "shim/records.h"
#include "shim/shim_protocol.h"

namespace stasis::shim {

struct ShimOptions {
  enum class Mode { kRun, kRestore } mode = Mode::kRun;
  std::string job_dir;
  std::string log;
  std::vector<std::string> argv;  // the job's program, or CRIU
  std::map<int, int> criu_fds;    // restore: number in CRIU -> ours
  // For the program alone; see LaunchSpec.
  std::map<std::string, std::string> env;
};
// `stasis-shim run|restore --job-dir DIR --log FILE [--fd K=N]... [--env K=V]... -- CMD ARG...`, in
// this order.
Result<ShimOptions> ParseOptions(const std::vector<std::string>& args);

class Shim {
 public:
  Shim(ShimOptions options, UniqueFd control)
      : options_(std::move(options)), control_(std::move(control)) {}

  // Returns when no process of the job is left: the shim's exit code.
  int Main();

 private:
  Status Start(Step* step);
  Status StartProgram(int null_fd, Step* step);
  Status StartCriu(int null_fd, Step* step);

  int Loop();
  void ReapChildren();
  void OnChildEnd(pid_t pid, int wait_status);
  void OnRootEnd(int wait_status);
  // False when the half-restored tree has been given up.
  bool ServeControl();
  void Commit();
  void Abort();
  void Send(const Message& message);

  ShimOptions options_;
  UniqueFd control_;
  UniqueFd signals_;
  OutputLog log_;
  JobFolder folder_;
  process::ProcessId self_;
  process::ProcessId root_;
  std::optional<int> root_status_;
  pid_t criu_ = 0;          // 0: none, or it has ended
  bool committed_ = false;  // the tree is the job's
  bool recorded_ = false;   // exit.json is there
  bool childless_ = false;
  std::map<pid_t, int> ended_;  // restore, before the root is named: it may be among these
};

}  // namespace stasis::shim
