// Refuses a dump of a target that contains another job (`stasis manage` of a child, or `stasis run`
// below a subreaper). The dump would end that job, and the job's record would not list the image. A
// suspend is harmless: the state of the other job shows that it is suspended too.
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checks {

// Returns kFailedPrecondition if the first process or the shim of a job other than `own` is in
// `members`, and names the job. `own` is empty if the target is not a job. With `leave_running` no
// process is ended, and only shims are refused: the copy of a shim would act for the same job.
// Jobs in other state folders (root can see those of other users) are recognized only by their
// shims, so adopted jobs, which have none, are not found there.
Status CheckEndsNoOtherJob(const Paths& paths, const std::string& own,
                           const std::vector<process::ProcessId>& members, bool leave_running);

}  // namespace stasis::checks
