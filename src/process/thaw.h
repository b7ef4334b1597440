// Waits until a paused container runs again.
#pragma once

#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Waits until no control group of the process is frozen (see IsFrozen), or until the process has
// ended or has a pending SIGKILL.
Status AwaitThawed(const ProcessId& id);

}  // namespace stasis::process
