// Waiting for the end of a process that is not our child.
#pragma once

#include "base/deadline.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Somebody has sent it SIGKILL; also of a zombie, and false of who is gone.
bool WasKilled(const ProcessId& id);

// Waits until the process has ended; it may still be a zombie then. kDeadlineExceeded.
Status WaitForEnd(const ProcessId& id, const Deadline& deadline);

// Waits until its parent has taken it away too, and its number is free. kDeadlineExceeded, and says
// which of the two is missing.
Status WaitUntilReaped(const ProcessId& id, const Deadline& deadline);

}  // namespace stasis::process
