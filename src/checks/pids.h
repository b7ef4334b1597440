// Checks that the process ids of an image are free for a restore, and that a dump can save the pid
// namespace of a program (checkpoint/program_pids.h).
#pragma once

#include <set>

#include "checks/survey.h"
#include "gpu_state/services.h"
#include "store/manifest.h"

namespace stasis::checks {

// Returns kAborted if a pid that the program needs is taken. Waits for killed processes to end.
Status CheckPidsFree(const store::Manifest& manifest);

// Returns true if a pid of the program, or one of `ids` (criu/task_ids.h), is taken, and the
// program itself is not running here. It can then be restored in another pid namespace only. Waits
// as above.
bool NeedsPidNamespace(const store::Manifest& manifest, const std::set<pid_t>& ids);

// Returns true if the program is in the pid namespace of its job's shim (`restore --new-pidns`), so
// that CRIU must run inside this namespace. Returns false if the program is in this process's pid
// namespace, or in its own, whose init process is the program's root. Returns kPermissionDenied if
// this process cannot start CRIU in the namespace, and kUnimplemented otherwise, because CRIU
// cannot save such a program from here.
Result<bool> LivesInJobsPidNamespace(const gpu_state::Services& services, const Survey& survey);

}  // namespace stasis::checks
