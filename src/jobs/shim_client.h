// Starting a shim and talking to it until it stands on its own.
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

// Where the output of a job goes, and its input comes from.
struct StdioSpec {
  std::string log;
  uint64_t keep_log_bytes = 0;  // of its end; 0: all of it
  // A terminal of the job's own, of this size.
  std::optional<shim::WindowSize> terminal = {};
  int client_fd = -1;  // one who is attached to it from the start: see terminal_client.h
  // run: becomes the program's standard input, where it has no terminal; -1: /dev/null.
  int input_fd = -1;
};

struct RunSpec {
  std::string job_folder;
  StdioSpec stdio;
  std::vector<std::string> argv;
  // Set in the program's environment, not in the shim's; an empty value takes the name out of it.
  std::map<std::string, std::string> env;
};
struct StartedJob {
  process::ProcessId shim;
  process::ProcessId root;
};
// Starts a program under a shim, in the caller's environment, directory, umask, limits and cgroup.
// When it returns the program's exec has succeeded and the shim has written down both processes. A
// failed exec is the program's own error (kNotFound: there is no such program), and nothing runs.
Result<StartedJob> StartShimForRun(const RunSpec& spec, const Deadline& deadline);

struct RestoreSpec {
  std::string job_folder;
  StdioSpec stdio;
  // How CRIU is started: see criu/client.h.
  std::vector<std::string> criu_argv;
  std::vector<std::string> criu_env;
  // CRIU's descriptors, number there -> ours; its socket among them. Below 10 or from 20 to 99: the
  // shim adds the others, see kCriuOutputFds, kCriuNullFds and kCriuTerminalFds. Ours must be
  // closed when Start has returned, so that CRIU's end shows as an end of file.
  std::map<int, int> criu_fds;
  // In a new pid namespace, whose init is the shim: the job ends with it. CRIU is numbered
  // `criu_pid` there; its argv must be that of criu::Inside.
  bool new_pidns = false;
  pid_t criu_pid = 0;
};

// A tree that is being restored under a shim. Until Commit has succeeded the shim undoes everything
// when this object, or its process, goes away. Not thread safe.
class RestoreShim {
 public:
  // Returns when CRIU runs and waits for its request.
  static Result<RestoreShim> Start(const RestoreSpec& spec, const Deadline& deadline);

  const process::ProcessId& shim() const { return shim_; }
  // 0 in a new pid namespace: criu::Inside knows it.
  process::HostPid criu() const { return criu_; }

  // Names the root of the restored tree; as soon as it is known, best while it is still stopped.
  Status SetRoot(const process::ProcessId& root, const Deadline& deadline);
  // CRIU's wait status, once it has ended.
  Result<int> AwaitCriuEnd(const Deadline& deadline);
  // The root's wait status, when it has ended before the commit, as far as the shim has said.
  std::optional<int> root_ended() const { return root_ended_; }
  // The tree is the job's: the shim has written it down and goes on without us.
  Status Commit(const Deadline& deadline);
  // Kills CRIU and what it has restored; when it returns no process of the tree is left.
  Status Abort(const Deadline& deadline);

 private:
  RestoreShim() = default;
  Status Say(const shim::Message& message);
  // Reads until a message of this kind comes; what else comes is remembered.
  Result<shim::Message> Await(shim::Kind kind, const Deadline& deadline);
  Status AwaitAck(shim::Kind of, const Deadline& deadline);

  UniqueFd control_;
  process::ProcessId shim_;
  process::HostPid criu_;
  std::optional<int> criu_ended_;
  std::optional<int> root_ended_;
};

}  // namespace stasis::jobs
