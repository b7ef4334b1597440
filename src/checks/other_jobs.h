// Refuses a dump of a target that contains another job (`stasis manage` of a child, or `stasis run`
// below a subreaper). A suspend of the target suspends that job too, and its state shows it. A dump
// would end it, and its record would not know of the image.
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checks {

// kFailedPrecondition names a job other than `own` (empty: any job) whose first process or shim is
// in `members`. With `leave_running` no job is ended, but a shim must not be in an image, because
// the copy would act for the same job. Jobs of other stores (of other users, for root) are found by
// their shims only, so a job of `manage` is not found there.
Status CheckEndsNoOtherJob(const Paths& paths, const std::string& own,
                           const std::vector<process::ProcessId>& members, bool leave_running);

}  // namespace stasis::checks
