// Creates the shim's process, which may be the init process of a new pid namespace.
#pragma once

#include <sys/types.h>

#include "base/result.h"

namespace stasis::shim {

// As fork(2), with `new_pidns` into a new pid namespace.
Result<pid_t> ForkShim(bool new_pidns);

// Returns the pid of this process in the pid namespace of `proc`, an open folder /proc; -1: the one
// that is mounted now.
Result<pid_t> ReadOwnPid(int proc);

// Call in the init process of a new pid namespace. Creates a mount namespace that receives mounts
// of the machine but propagates none back, and mounts /proc for the new pid namespace. The next
// process gets the pid `first_pid` (0: any).
Status FurnishPidNamespace(pid_t first_pid);

}  // namespace stasis::shim
