// Resource limits and placement that a child process inherits.
#pragma once

#include <string>

#include "process/proc.h"

namespace stasis::process {

// Names the first property in which `other` differs from the calling process: a resource limit, the
// nice value, the I/O priority, the CPU affinity, the OOM score adjustment or a control group.
// Returns an empty string if all are equal. Ignores the soft limit on open files, because servers
// raise it themselves.
std::string InheritanceDifference(HostPid other);

}  // namespace stasis::process
