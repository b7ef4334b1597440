// Processes of Stasis that serve several programs and are part of none of them, even if one of the
// programs started them: resident movers, and the broker of the software GPUs.
#pragma once

#include "process/proc.h"

namespace stasis::process {

// Returns true if the process runs such a program of this installation. Checks the executable, not
// the process name, which any program can set. Returns false if the process has ended or may not be
// inspected.
bool IsSharedServer(HostPid pid);

}  // namespace stasis::process
