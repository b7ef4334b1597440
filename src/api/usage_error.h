// Reports errors in a request.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace stasis::api {

// Returns a usage error: exit code 2 of the command line.
inline tl::unexpected<Error> FailUsage(std::string message, std::string hint = {}) {
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0, std::move(message), std::move(hint));
}

// Returns a usage error for a relative path, which would be resolved in the working directory of
// this process. Clients other than the command line may send such paths. An empty path is allowed.
inline Status CheckAbsolute(const std::string& what, const std::string& path) {
  if (path.empty() || path.front() == '/') return {};
  return FailUsage(what + " " + path + " is not an absolute path");
}

}  // namespace stasis::api
