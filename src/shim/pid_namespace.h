// Creates the shim's process, which may be the init process of a new pid namespace.
#pragma once

#include <sys/types.h>

#include "base/result.h"

namespace stasis::shim {

// Forks, with `new_pidns` into a new pid namespace. Returns 0 in the caller, and in the child its
// own pid as the caller sees it.
Result<pid_t> ForkShim(bool new_pidns);

// Call in the init process of a new pid namespace. Creates a mount namespace that receives mounts
// of the machine but propagates none back, and mounts /proc for the new pid namespace. The next
// process gets the pid `first_pid` (0: any).
Status FurnishPidNamespace(pid_t first_pid);

}  // namespace stasis::shim
