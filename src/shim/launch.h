// Starts the job's program, or CRIU, as a child in its own session that waits before it runs exec.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::shim {

struct LaunchSpec {
  std::vector<std::string> argv;
  // Maps descriptor numbers in the child to those in this process. All other descriptors are closed
  // in the child. No signal is blocked or ignored in the child, as after a login.
  std::map<int, int> fds;
  // Environment variables that are set only in the child; an empty value removes the variable.
  std::map<std::string, std::string> env;
  // The child's descriptor 0 becomes the controlling terminal of its session.
  bool controlling_terminal = false;
  bool rights = false;  // for CRIU: the child gets the capabilities for a restore (base/rights.h)
};

class Launched {
 public:
  pid_t pid() const { return pid_; }
  // Lets the child run exec. Returns 0, or the errno of a failed exec; in that case the child has
  // exited and the caller must reap it. A child that is never released exits with this process.
  int Release();

 private:
  friend Result<Launched> Launch(const LaunchSpec& spec);
  pid_t pid_ = -1;
  UniqueFd gate_;    // one byte written here releases the child
  UniqueFd errors_;  // closed by a successful exec
};

// Forks the child, which waits for Release().
Result<Launched> Launch(const LaunchSpec& spec);

}  // namespace stasis::shim
