// Child processes that get exactly the descriptors and the environment named here.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"

namespace stasis {

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the program
  // The whole environment as NAME=VALUE; the caller's environment if absent.
  std::optional<std::vector<std::string>> env;
  // Maps descriptors of the child to descriptors of the caller. 0, 1 and 2 default to /dev/null,
  // /dev/null and the caller's stderr. All others are closed in the child.
  std::map<int, int> fds;
  std::string working_directory;     // the caller's if empty
  bool new_session = false;          // keeps signals of the caller's terminal from the child
  std::vector<int> ignored_signals;  // ignored in the child from its first instruction on
  // The child starts with exactly these signals blocked, whatever the caller blocks.
  std::vector<int> blocked_signals;
  // The child's soft RLIMIT_NOFILE, if it must differ from the caller's (base/descriptor_table.h).
  std::optional<uint64_t> descriptor_limit;
  // The capabilities that the child gets (base/rights.h).
  enum class Rights : uint8_t { kNone, kRestore, kDump } rights = Rights::kNone;
  bool network_right = false;  // CAP_NET_ADMIN too; has no effect with kNone
  // Kill the child with SIGKILL when the thread that started it exits. Must not be set for CRIU,
  // see criu/client.h.
  bool die_with_parent = false;
};

// A started child process. The destructor neither kills nor reaps it; call Wait to avoid a zombie.
class Subprocess {
 public:
  // Starts the program and waits for its exec, whose error it returns.
  static Result<Subprocess> Spawn(const SpawnOptions& options);

  pid_t pid() const { return pid_; }
  // Becomes readable when the child exits.
  int pidfd() const { return pidfd_.get(); }
  // Waits for the child to exit and reaps it. Returns the wait status of waitpid(2), or
  // kDeadlineExceeded if the child is still running.
  Result<int> Wait(const Deadline& deadline = {});
  void Kill(int signal);

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<int> status_;
};

// Returns "exited with code 3" or "was killed by signal 9 (Killed)".
std::string DescribeWaitStatus(int status);

// Returns the environment for helpers that load the GPU driver: an allow-list of the caller's
// variables plus the operation id. Variables that make a program load or use something else are
// left out (LD_PRELOAD, CUDA_VISIBLE_DEVICES, CUDA_INJECTION64_PATH, ...).
std::vector<std::string> ScrubbedEnvironment();

}  // namespace stasis
