// The process ids of a program: whether a restore finds them free, and in which pid namespace a
// dump finds them (checkpoint/program_pids.h).
#pragma once

#include "checks/survey.h"
#include "gpu_state/services.h"
#include "store/manifest.h"

namespace stasis::checks {

// Refuses (kAborted) when somebody has one of the numbers that the program needs back. A program
// that was just killed may still be dying: that is waited for.
Status CheckPidsFree(const store::Manifest& manifest);

// The program lives in a pid namespace of which the shim of its job is the init
// (`restore --new-pidns`): then CRIU has to work in there. kUnimplemented: in any other that is
// below ours and was not begun by the program's root, for CRIU could not save it from here.
Result<bool> LivesInJobsPidNamespace(const gpu_state::Services& services, const Survey& survey);

}  // namespace stasis::checks
