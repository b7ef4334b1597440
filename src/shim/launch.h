// Starting the job's program, or CRIU: a child in a session of its own, held back until it may go.
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
  // Child's number -> ours. All others are closed. Signals are as a login shell would have them:
  // none blocked, none ignored, whatever our caller did.
  std::map<int, int> fds;
  // Set in the child's environment, and in nobody else's; an empty value takes the name out of it.
  std::map<std::string, std::string> env;
  // The terminal that the child has as 0 becomes its session's.
  bool controlling_terminal = false;
  bool rights = false;  // it is CRIU, and gets what it needs for a restore (base/rights.h)
};

class Launched {
 public:
  pid_t pid() const { return pid_; }
  // Lets the child become the program. Returns the errno of a failed exec (the child has then
  // ended; its zombie is the caller's), or 0. A child that is never released ends with us.
  int Release();

 private:
  friend Result<Launched> Launch(const LaunchSpec& spec);
  pid_t pid_ = -1;
  UniqueFd gate_;    // a byte written here is the permission
  UniqueFd errors_;  // closed by a successful exec
};

Result<Launched> Launch(const LaunchSpec& spec);

}  // namespace stasis::shim
