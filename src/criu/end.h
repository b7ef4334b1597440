// Stops a CRIU that exceeded its deadline, without harm to the program. The effect of each
// step was measured (docs/decisions/criu-deadlines.md).
#pragma once

#include <chrono>

#include "process/proc.h"

namespace stasis::criu {

enum class Ended {
  kByItself,  // it rolled back its work
  kKilled,    // it could not roll back; the program may have died with it
  kNotYet,    // not even SIGKILL ended it: it blocks in the kernel
};

// Time limits of the steps, from the mildest to the hardest.
struct Patience {
  std::chrono::milliseconds undo{15000};   // dump: CRIU rolls back and exits
  std::chrono::milliseconds forget{2000};  // restore: after its tree was killed
  std::chrono::milliseconds alarm{8000};   // after SIGALRM
  std::chrono::milliseconds killed{5000};  // after SIGKILL
};

// Stops a dump. `pidfd` is CRIU's. Its socket must be closed first, so that CRIU takes its next
// question as rejected. CRIU must have been started with SIGXFSZ ignored.
Ended EndDump(process::HostPid criu, int pidfd, const Patience& patience = {});

// Stops a restore: kills the partial tree, after which CRIU fails by itself. `root` is the root of
// the restored tree if known, else 0.
Ended EndRestore(process::HostPid criu, int pidfd, process::HostPid root,
                 const Patience& patience = {});

}  // namespace stasis::criu
