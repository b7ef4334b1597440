// Numbers of a process in pid namespaces other than ours. `HostPid` is always as we see it; what
// the process itself, its agent and a CRIU beside it call it is an `inner` number.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// The number of `pid` in its own pid namespace: its HostPid's, where that is ours. A zombie has one
// too. kNotFound: there is no such process.
Result<pid_t> ReadInnerPid(HostPid pid);

// Who has the number `inner` in a pid namespace (the number that ReadNamespace gives for it);
// looked for in all of /proc. kNotFound: nobody, or a zombie.
Result<HostPid> FindByInnerPid(uint64_t pid_namespace, pid_t inner);

// `pid` lives in a pid namespace below ours.
Result<bool> IsInOtherPidNamespace(HostPid pid);

}  // namespace stasis::process
