// The pids of a program's processes in its image and after a restore.
//
// An image identifies a process by its pid in the namespace of the dump (store::Process::pid). CRIU
// restores the pid of the process's own namespace (namespace_pid), which is the same number unless
// the program had its own pid namespace. After a restore into a new pid namespace the process has
// that number inside, and another one outside.
#pragma once

#include "base/result.h"
#include "process/tree.h"
#include "store/manifest.h"

namespace stasis::checkpoint {

// Returns true if the root was the init process of a pid namespace. CRIU then restores the
// namespace too.
bool BringsItsPidNamespace(const store::Manifest& manifest);

// Returns a pid for CRIU itself in a new pid namespace, far from the pids of the program.
pid_t PidForCriu(const store::Manifest& manifest);

// Finds a process of the image in the restored tree. Returns kDataLoss if the tree does not contain
// it, because a manifest must not be able to name another program's process.
Result<process::ProcessId> FindRestored(const store::Process& process,
                                        const process::ProcessTree& tree);

}  // namespace stasis::checkpoint
