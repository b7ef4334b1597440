// What a forked child has of its parent's GPU.
#pragma once

#include <cstdint>

namespace stasis::agent {

// In a child after fork: files of the GPU that it inherited become /dev/null, under the same
// numbers, and mappings of them become inaccessible memory. The driver lets no such child use them,
// and they would keep it from being dumped. Mappings that `keep` wants stay: memory that the
// program itself may read. SAFETY: no lock, no allocation, and no function of libc that the program
// could have replaced.
void LeaveDeviceFilesToParent(bool (*keep)(uint64_t begin, uint64_t end));

}  // namespace stasis::agent
