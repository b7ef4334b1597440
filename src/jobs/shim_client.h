// Starts a shim and exchanges messages with it until the job belongs to the shim.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"
#include "shim/shim_protocol.h"
#include "shim/terminal_protocol.h"

namespace stasis::jobs {

// Destination of a job's output and source of its input.
struct StdioSpec {
  std::string log;
  uint64_t keep_log_bytes = 0;  // bytes to keep from the end of the log; 0: everything
  // Size of a new terminal for the job.
  std::optional<shim::WindowSize> terminal = {};
  int client_fd = -1;  // descriptor of a client attached from the start: see terminal_client.h
  // run: standard input of a program without a terminal; -1: /dev/null.
  int input_fd = -1;
};

struct RunSpec {
  std::string job_folder;
  StdioSpec stdio;
  std::vector<std::string> argv;
  // Environment variables of the program, not of the shim; an empty value removes the variable.
  std::map<std::string, std::string> env;
};
struct StartedJob {
  process::ProcessId shim;
  process::ProcessId root;
};
// Starts a program under a shim, with the caller's environment, directory, umask, limits and
// cgroup. On success the exec has succeeded and the shim has recorded both processes. If the exec
// fails, returns its error (kNotFound: no such program), and nothing is left running.
Result<StartedJob> StartShimForRun(const RunSpec& spec, const Deadline& deadline);

struct RestoreSpec {
  std::string job_folder;
  StdioSpec stdio;
  // The command line of CRIU: see criu/client.h.
  std::vector<std::string> criu_argv;
  std::vector<std::string> criu_env;
  // The descriptors that CRIU gets, including its socket. Maps numbers in CRIU to descriptors in
  // this process. Numbers in CRIU must be below 10 or from 20 to 99; the shim adds those of
  // kCriuOutputFds, kCriuNullFds and kCriuTerminalFds. The caller must close its copies when Start
  // has returned, or it gets no end-of-file when CRIU exits.
  std::map<int, int> criu_fds;
  // Restore in the pid namespace of ipc::PidnsInit::Get(); without one, in a new pid namespace
  // whose init process is the shim, so the job ends with it. CRIU gets the pid `criu_pid` there;
  // criu_argv must come from criu::Inside.
  bool new_pidns = false;
  pid_t criu_pid = 0;
  bool network_right = false;  // CRIU needs CAP_NET_ADMIN, to keep TCP connections
};

// A tree being restored under a shim. Unless Commit has succeeded, the shim undoes everything when
// this object is destroyed or its process ends. Not thread-safe.
class RestoreShim {
 public:
  // Starts the shim and CRIU. Returns when CRIU is running and waits for its request.
  static Result<RestoreShim> Start(const RestoreSpec& spec, const Deadline& deadline);

  const process::ProcessId& shim() const { return shim_; }
  // Returns 0 in another pid namespace; use criu::Inside there.
  process::HostPid criu() const { return criu_; }

  // Tells the shim the root of the restored tree. Call it as early as possible, preferably while
  // the tree is stopped.
  Status SetRoot(const process::ProcessId& root, const Deadline& deadline);
  // Waits for CRIU to exit and returns its wait status.
  Result<int> AwaitCriuEnd(const Deadline& deadline);
  // Returns the root's wait status if the shim has reported its end before the commit.
  std::optional<int> root_ended() const { return root_ended_; }
  // Waits for that report and returns the status. The root must have ended.
  std::optional<int> AwaitRootEnd(const Deadline& deadline);
  // Commits the restore: the tree now belongs to the job, and the shim records it and no longer
  // depends on this object.
  Status Commit(const Deadline& deadline);
  // Kills CRIU and the restored tree; returns when no process of it is left.
  Status Abort(const Deadline& deadline);

 private:
  RestoreShim() = default;
  Status Say(const shim::Message& message);
  // Reads until a message of this kind arrives; stores other messages.
  Result<shim::Message> Await(shim::Kind kind, const Deadline& deadline);
  Status AwaitAck(shim::Kind of, const Deadline& deadline);

  UniqueFd control_;
  process::ProcessId shim_;
  process::HostPid criu_;
  std::optional<int> criu_ended_;
  std::optional<int> root_ended_;
};

}  // namespace stasis::jobs
