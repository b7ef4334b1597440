// Stops a CRIU that has exceeded its deadline, without harm to the program. The effect of each step
// was measured (docs/decisions/criu-deadlines.md).
#pragma once

#include <chrono>

#include "process/proc.h"

namespace stasis::criu {

enum class Ended {
  kByItself,  // CRIU rolled back its work
  kKilled,    // CRIU could not roll back; the program may have died too
  kNotYet,    // SIGKILL did not end CRIU, which blocks in the kernel
};

// Time limits for CRIU to exit after each step, from the mildest step to the hardest.
struct Patience {
  std::chrono::milliseconds undo{15000};   // dump: while CRIU rolls back
  std::chrono::milliseconds forget{2000};  // restore: after the restored tree was killed
  std::chrono::milliseconds alarm{8000};   // after SIGALRM
  std::chrono::milliseconds killed{5000};  // after SIGKILL
};

// Stops a dump. `pidfd` is CRIU's. CRIU's socket must be closed first, so that its next
// notification counts as rejected. CRIU must have been started with SIGXFSZ ignored.
Ended EndDump(process::HostPid criu, int pidfd, const Patience& patience = {});

// Stops a restore: kills the partial tree, after which CRIU fails by itself. `root` is the root of
// the restored tree, or 0 if it is not known.
Ended EndRestore(process::HostPid criu, int pidfd, process::HostPid root,
                 const Patience& patience = {});

}  // namespace stasis::criu
