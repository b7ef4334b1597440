// Is a process its caller's own, so that what it holds may be handed to him?
#pragma once

#include "base/caller.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Of root every process is. Of any other user one is, every thread of which has all four user ids
// and all four group ids and every group from him, and no capability; which is in our user
// namespace; and which the kernel shows as his, as it does with none that has run a set-id program
// or let go of rights. Asked through a pidfd and the start time, so that the answer is of this very
// process: kNotFound when it has ended, kPermissionDenied with what is not his.
Status CheckOwn(const Stat& process, const Caller& caller);

}  // namespace stasis::process
