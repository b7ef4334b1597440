// The name of this machine. Folders may be shared by machines, and records of processes in them say
// on which machine the processes run.
#pragma once

#include <string>

namespace stasis::process {

// Returns the name as of uname(2). It differs between the nodes of a cluster, and stays the same
// when a node is restarted. A character that would need an escape in JSON, which no usual name has,
// is replaced by '?'.
std::string HostName();

}  // namespace stasis::process
