// Child processes of ours: started with exactly the descriptors and the environment that are named
// here.
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
  // The whole environment as NAME=VALUE; absent: the caller's own.
  std::optional<std::vector<std::string>> env;
  // Descriptors that the child gets, child number -> ours. 0, 1 and 2 default to /dev/null,
  // /dev/null and the caller's stderr; everything else is closed in the child.
  std::map<int, int> fds;
  std::string working_directory;     // empty: the caller's
  bool new_session = false;          // setsid: a signal to the caller's terminal does not reach it
  std::vector<int> ignored_signals;  // in the child, from its first instruction on
  // Kept for the child until it is ready for them; else it begins with none blocked.
  std::vector<int> blocked_signals;
  // The child's soft RLIMIT_NOFILE, where it is not to be ours (base/descriptor_table.h).
  std::optional<uint64_t> descriptor_limit;
  // What the child gets of the rights that are kept for CRIU (base/rights.h).
  enum class Rights : uint8_t { kNone, kRestore, kDump } rights = Rights::kNone;
  // SIGKILL when the thread that started it ends. Never for CRIU: see criu/client.h.
  bool die_with_parent = false;
};

// A started child. Destroying it does not end it, and leaves a zombie until the parent goes: call
// Wait.
class Subprocess {
 public:
  static Result<Subprocess> Spawn(const SpawnOptions& options);

  pid_t pid() const { return pid_; }
  // Becomes readable when the child ends.
  int pidfd() const { return pidfd_.get(); }
  // Waits for the end and reaps: the wait status of waitpid(2); kDeadlineExceeded when it still
  // runs.
  Result<int> Wait(const Deadline& deadline = {});
  void Kill(int signal);

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<int> status_;
};

// "exited with code 3", "was killed by signal 9 (Killed)".
std::string DescribeWaitStatus(int status);

// The environment for helpers that load the driver: the caller's less everything by which a program
// is made to load or do something else (LD_PRELOAD, CUDA_VISIBLE_DEVICES, CUDA_INJECTION64_PATH,
// ...). Allow-list. The operation's id is in it.
std::vector<std::string> ScrubbedEnvironment();

}  // namespace stasis
