// Compares resource limits, placement and privileges, which a child process inherits.
#pragma once

#include <string>

#include "process/proc.h"

namespace stasis::process {

// Names the first property in which `other` differs from the calling process: a resource limit, the
// nice value, the I/O priority, the scheduling policy, the CPU affinity, the groups, no_new_privs,
// the number of seccomp filters, root's bounding set of capabilities, the OOM score adjustment or a
// control group. Returns an empty string if all are equal. Ignores the soft limit on open files,
// because servers raise it themselves.
std::string InheritanceDifference(HostPid other);

}  // namespace stasis::process
