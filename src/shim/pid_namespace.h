// The shim's own process, and the pid namespace whose init it may be.
#pragma once

#include <sys/types.h>

#include "base/result.h"

namespace stasis::shim {

// Forks, with `new_pidns` into a new pid namespace. In the caller 0; in the child its own number as
// the caller sees it.
Result<pid_t> ForkShim(bool new_pidns);

// To be called by the init of a pid namespace: mounts of its own, to which those of the machine
// still come but from which none go, with a /proc of this namespace. The next process there is
// numbered `first_pid` (0: as it comes).
Status FurnishPidNamespace(pid_t first_pid);

}  // namespace stasis::shim
