// Replaces the GPU's files that a forked child inherits from its parent.
#pragma once

#include <cstdint>

namespace stasis::agent {

// In a forked child, replaces inherited files of the GPU by /dev/null under the same numbers, and
// mappings of such files by inaccessible memory. The driver does not let the child use them, and
// they would prevent a dump of the child. Mappings for which `keep` returns true stay: the program
// itself may read them.
//
// SAFETY: takes no lock, allocates nothing, and makes system calls without libc's wrappers, which
// the program could have replaced.
void LeaveDeviceFilesToParent(bool (*keep)(uint64_t begin, uint64_t end));

}  // namespace stasis::agent
