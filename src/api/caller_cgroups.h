// Finds the control groups of the calling process, as the kernel reports them.
#pragma once

#include <string>
#include <vector>

#include "api/caller.h"
#include "base/result.h"

namespace stasis::api {

// Returns the folders of the control groups that a program started for this caller must join, or an
// empty list if they are the daemon's own. `connection` is gRPC's name of the unix-socket
// connection (ServerContext::peer). Returns kFailedPrecondition if the groups cannot be determined
// or joined. Safe to call from any thread, but only during the call, which keeps the connection
// open.
Result<std::vector<std::string>> CgroupsOfCaller(const std::string& connection,
                                                 const Caller& caller);

}  // namespace stasis::api
