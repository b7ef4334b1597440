// The numbers of a program's processes: those that an image knows them by, and those under which
// they come back.
//
// An image calls a process by the number that it had where the dump was made (store::Process::pid).
// CRIU gives it the one of its own pid namespace (namespace_pid): what every process of a program
// that was never in one of its own calls itself by anyway. In a new pid namespace that is still its
// number, and we see another.
#pragma once

#include "base/result.h"
#include "process/proc.h"
#include "store/manifest.h"

namespace stasis::checkpoint {

// Its root was the init of a pid namespace, which CRIU has saved and makes anew.
bool BringsItsPidNamespace(const store::Manifest& manifest);

// Where CRIU itself is out of the way of all of them, in a pid namespace that is empty but for it.
pid_t PidForCriu(const store::Manifest& manifest);

// The process of an image below the restored `root`.
Result<process::ProcessId> FindRestored(const store::Process& process,
                                        const process::ProcessId& root);

}  // namespace stasis::checkpoint
