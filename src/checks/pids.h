// Checks of process ids (checkpoint/program_pids.h): that a restore finds them free, and that a
// dump can save their pid namespace.
#pragma once

#include "checks/survey.h"
#include "gpu_state/services.h"
#include "store/manifest.h"

namespace stasis::checks {

// kAborted if a pid that the program needs is taken. Waits for a killed process to end.
Status CheckPidsFree(const store::Manifest& manifest);

// Returns true if the program is in a pid namespace whose init process is the job's shim (`restore
// --new-pidns`), so that CRIU must work inside it. kUnimplemented for any other pid namespace below
// ours, unless the program's root is its init process: CRIU could not save the program from here.
Result<bool> LivesInJobsPidNamespace(const gpu_state::Services& services, const Survey& survey);

}  // namespace stasis::checks
