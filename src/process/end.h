// Waits for the end of a process that is not a child.
#pragma once

#include "base/deadline.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Returns true if SIGKILL is pending for the process, even if it is a zombie. Returns false if the
// process no longer exists.
bool WasKilled(const ProcessId& id);

// Waits until the process has ended; it may still be a zombie then. Returns kDeadlineExceeded at
// the deadline.
Status WaitForEnd(const ProcessId& id, const Deadline& deadline);

// Waits until the process has ended and its parent has reaped it, so that its pid is free. The
// message of kDeadlineExceeded says which of the two did not happen.
Status WaitUntilReaped(const ProcessId& id, const Deadline& deadline);

}  // namespace stasis::process
