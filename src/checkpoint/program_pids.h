// The numbers of a program's processes: those that an image knows them by, and those under which
// they come back.
//
// An image calls a process by the number that it had where the dump was made (image::Process::pid).
// CRIU gives it the one of its own pid namespace (namespace_pid): what every process of a program
// that was never in one of its own calls itself by anyway. In a new pid namespace that is still its
// number, and we see another.
#pragma once

#include "base/result.h"
#include "image/manifest.h"
#include "process/proc.h"

namespace stasis::checkpoint {

// Its root was the init of a pid namespace, which CRIU has saved and makes anew.
bool BringsItsPidNamespace(const image::Manifest& manifest);

// Where CRIU itself is out of the way of all of them, in a pid namespace that is empty but for it.
pid_t PidForCriu(const image::Manifest& manifest);

// The process of an image below the restored `root`.
Result<process::ProcessId> FindRestored(const image::Process& process,
                                        const process::ProcessId& root);

}  // namespace stasis::checkpoint
