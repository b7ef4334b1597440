// Starts processes in a pid namespace that was made for an ordinary user, who cannot make one.
//
// Slurm's plugin makes the pid and mount namespaces of a task and starts `stasis-pidns-init` as
// their init process, with the user's rights and one end of a socket pair. The other end is
// inherited by the commands of Stasis that the task's launcher runs. See
// docs/decisions/slurm-pid-namespace.md.
//
//   client -> init   PidnsRequest with descriptors: the socket for the reply, a memory file with
//                    the arguments, the environment and the working directory as terminated
//                    strings, and those of the new process
//   init -> client   PidnsReply on that socket
//   end-of-file      the init process exits, and the kernel kills all processes of the namespace
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/fd.h"
#include "base/result.h"
#include "base/subprocess.h"

namespace stasis::ipc {

// Names the socket and the init process for a command: "FD:PID".
inline constexpr char kPidnsVariable[] = "STASIS_PIDNS";

// The name of the init process, which the kernel has cut to 15 characters.
inline constexpr char kPidnsComm[] = "stasis-pidns-in";

// The init process's descriptor of its socket. It sends one byte when it is ready.
inline constexpr int kPidnsSocketFd = 3;

// Safe to call from any thread.
class PidnsInit {
 public:
  // `pid_namespace`: as ReadNamespace returns it.
  PidnsInit(UniqueFd socket, uint64_t pid_namespace)
      : socket_(std::move(socket)), pid_namespace_(pid_namespace) {}

  // Returns the init process that this process may use, or null if kPidnsVariable names none. The
  // first call removes the variable and takes the descriptor.
  static const PidnsInit* Get();

  uint64_t pid_namespace() const { return pid_namespace_; }

  // Starts a process as a child of the init process, and waits for its exec, whose error it
  // returns. The process gets the pid `pid` there (0: any). Of `options` it supports what
  // PidnsRequest holds.
  Status Spawn(const SpawnOptions& options, pid_t pid) const;

 private:
  UniqueFd socket_;
  uint64_t pid_namespace_;
};

// Serves requests until the last client has closed its end of the socket, whatever else fails.
// Reaps all children. A malformed request, and one whose client has gone, is ignored.
Status ServePidns(int socket);

}  // namespace stasis::ipc
