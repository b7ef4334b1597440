// The control groups of the calling process, as the kernel reports them.
#pragma once

#include <string>
#include <vector>

#include "api/caller.h"
#include "base/result.h"

namespace stasis::api {

// Folders of the groups that a program started for this caller must join; empty if they are the
// daemon's own. `connection` is gRPC's name of the unix-socket connection (ServerContext::peer).
// Safe to call from any thread while the call is under way, which keeps the connection open.
// kFailedPrecondition if the groups cannot be determined or joined.
Result<std::vector<std::string>> CgroupsOfCaller(const std::string& connection,
                                                 const Caller& caller);

}  // namespace stasis::api
