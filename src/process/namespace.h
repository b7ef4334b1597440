// Pids in other pid namespaces. A `HostPid` is always a pid in this process's namespace. The
// `inner` pid is the one that the process itself, its agent and a CRIU in its namespace use.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Returns the pid of `pid` in its own pid namespace; equal to the HostPid if both namespaces are
// the same. Works for zombies. Returns kNotFound if the process does not exist.
Result<pid_t> ReadInnerPid(HostPid pid);

// Searches all of /proc for the process with pid `inner` in a pid namespace, given as the number
// that ReadNamespace returns. Returns kNotFound if there is no such process or it is a zombie.
Result<HostPid> FindByInnerPid(uint64_t pid_namespace, pid_t inner);

// Returns true if `pid` lives in a pid namespace below this one.
Result<bool> IsInOtherPidNamespace(HostPid pid);

}  // namespace stasis::process
