// Which CRIU is used, and whether this machine and this user can dump and restore with it.
#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "criu/client.h"

namespace stasis::criu {

// Older ones lack what we ask for, and die on new kernels.
inline constexpr Version kLeastVersion{4, 1, 0};

// The path of the CRIU to use: `named` and no other; without it the first that is new enough of:
// our own tree's libexec/criu, the checkout's own prefix, PATH and the usual sbin folders.
// kUnimplemented says what was found and what to do.
Result<std::string> FindCriu(const std::string& named);
// Its version, e.g. "4.2.1".
Result<std::string> FoundVersion(const std::string& named, const Deadline& deadline);

// Whether this user may dump and restore at all: kPermissionDenied, with what is missing. Quick.
Status CheckPrivileges();

// One thing that a dump or a restore needs of this machine and this user.
struct Finding {
  std::string name;  // a word for machines: "criu", "criu-check", "privileges", ...
  bool ok = false;
  std::string meaning;  // a sentence: what is so
  std::string mend;     // a command or a sentence, when it is not ok
};
std::vector<Finding> ProbeMachine(const std::string& criu, const Deadline& deadline);

}  // namespace stasis::criu
