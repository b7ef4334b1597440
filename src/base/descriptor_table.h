// The kernel's table of our descriptors.
#pragma once

#include <cstdint>
#include <optional>

namespace stasis {

// Raises the soft limit of descriptors to the hard one, and says what it was: what is started here
// for others gets that back (SpawnOptions::descriptor_limit). Programs that use select() break with
// numbers from 1024 on, so the limit is nobody's but ours. Nothing: it could not be raised.
std::optional<uint64_t> RaiseDescriptorLimit();

// fcntl(F_DUPFD_CLOEXEC) and dup2(2), which call a number beyond the limit EINVAL and EBADF: EMFILE
// here, as every other call. Async-signal-safe. -1 with errno.
int DuplicateAbove(int fd, int lowest);
int DuplicateAs(int fd, int number);  // `fd` is open

// Room for so many at once, called by main() while there is one thread. A process with several
// threads waits for an RCU grace period whenever the kernel enlarges its table (16 to 32 ms for the
// 253rd descriptor, the 509th, ..., Linux 6.18), in the middle of whatever gives it one.
void WidenDescriptorTable(int descriptors = 4096);

}  // namespace stasis
