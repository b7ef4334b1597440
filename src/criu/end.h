// Ending a CRIU that has passed its deadline, without harm to the program it works on. What each
// step does to the program was tried; docs/decisions/ has the figures.
#pragma once

#include <chrono>

#include "process/proc.h"

namespace stasis::criu {

enum class Ended {
  kByItself,  // it has undone what it had done
  kKilled,    // it could not; the program may have died with it
  kNotYet,    // not even SIGKILL has ended it: it hangs in the kernel
};

// How long each step may take before the next, harder one.
struct Patience {
  std::chrono::milliseconds undo{15000};   // of a dump: CRIU undoes and ends
  std::chrono::milliseconds forget{2000};  // of a restore: its tree is dead already
  std::chrono::milliseconds alarm{8000};   // and after SIGALRM
  std::chrono::milliseconds killed{5000};  // and after SIGKILL
};

// Of a dump. `pidfd` is CRIU's. The socket to it must have been closed: then it takes its next
// question as refused. It must have been started with SIGXFSZ ignored.
Ended EndDump(process::HostPid criu, int pidfd, const Patience& patience = {});

// Of a restore: the half tree is killed, then CRIU fails by itself. `root` is that of the restored
// tree where it is known, else 0.
Ended EndRestore(process::HostPid criu, int pidfd, process::HostPid root,
                 const Patience& patience = {});

}  // namespace stasis::criu
