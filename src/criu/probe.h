// Finds CRIU, and checks whether this machine and user can dump and restore with it.
#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "criu/client.h"

namespace stasis::criu {

// Older versions lack required features and fail on new kernels.
inline constexpr Version kLeastVersion{4, 1, 0};

// Returns the path of CRIU: `named` if it is not empty. Otherwise returns the first CRIU that is
// new enough in libexec/ of the installation, the checkout, PATH, or the usual sbin folders.
// Returns kUnimplemented if there is none; the message describes the programs that were found.
Result<std::string> FindCriu(const std::string& named);
// Returns the version of this CRIU, for example "4.2.1".
Result<std::string> FoundVersion(const std::string& named, const Deadline& deadline);

// Quickly checks whether this user may dump and restore at all. If not, returns kPermissionDenied,
// which names the missing privilege.
Status CheckPrivileges();

// One requirement of a dump or restore.
struct Finding {
  std::string name;  // machine-readable: "criu", "criu-check", "privileges", ...
  bool ok = false;
  std::string meaning;  // a sentence that states the finding
  std::string fix;      // a command or a sentence; set if not ok
};
// Runs all checks. `criu` is as for FindCriu.
std::vector<Finding> ProbeMachine(const std::string& criu, const Deadline& deadline);

}  // namespace stasis::criu
