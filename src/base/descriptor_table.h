// The kernel's table of our descriptors.
#pragma once

namespace stasis {

// Room for so many at once, called by main() while there is one thread. A process with several
// threads waits for an RCU grace period whenever the kernel enlarges its table (16 to 32 ms for the
// 253rd descriptor, the 509th, ..., Linux 6.18), in the middle of whatever gives it one.
void WidenDescriptorTable(int descriptors = 4096);

}  // namespace stasis
