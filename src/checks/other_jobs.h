// Jobs within jobs: a process of a target may be a job of its own (`stasis manage` of a child, or
// `stasis run` below a process that reaps for others). A suspend of all of it is one of that job
// too, and shows so. A dump would end it for an image that its record knows nothing of.
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checks {

// kFailedPrecondition: one of `members` is the first process of another job than `own` (empty: of
// any), or its shim; the job is named. With `leave_running` no job is ended, but a shim may not be
// in an image: the copy would take the job for its own. Jobs that are not in this store, of other
// users for root, are known by their shims only: one of `manage` has none, and is not seen.
Status CheckEndsNoOtherJob(const Paths& paths, const std::string& own,
                           const std::vector<process::ProcessId>& members, bool leave_running);

}  // namespace stasis::checks
