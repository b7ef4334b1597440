// Processes of Stasis that serve several programs and are part of none of them, even if one of the
// programs started them: resident helpers (ipc/resident.h), and the broker of the software GPUs.
#pragma once

#include <string>

#include "process/proc.h"

namespace stasis::process {

// Returns true if the process runs the program `name` of this installation. Checks the executable,
// not the process name, which any program can set. Returns false if the process has ended or may
// not be inspected.
bool RunsLibexecProgram(HostPid pid, const std::string& name);

// Returns true if the process runs any of the programs above.
bool IsSharedServer(HostPid pid);

}  // namespace stasis::process
