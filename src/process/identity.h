// Checks that a process belongs to the caller, who may then get its data.
#pragma once

#include "base/caller.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Succeeds for root. For other users, requires that all four user ids, all four group ids and all
// supplementary groups of every thread are the caller's, and that no thread has a capability. The
// process must be in this process's user namespace, and /proc must show it as the caller's, which
// is not the case after a set-id exec or a drop of privileges. Uses a pidfd and the start time, so
// the answer cannot concern a later process with the same pid. Returns kNotFound if the process has
// ended, kPermissionDenied with the reason otherwise.
Status CheckOwn(const Stat& process, const Caller& caller);

}  // namespace stasis::process
