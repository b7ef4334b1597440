// Limits and size of this process's descriptor table.
#pragma once

#include <cstdint>
#include <optional>

namespace stasis {

// Raises the soft RLIMIT_NOFILE to the hard limit and returns the old soft limit. Programs started
// for a user get the old limit back (SpawnOptions::descriptor_limit), because programs that use
// select() break with descriptors of 1024 and above. Returns nothing if the limit cannot be raised.
std::optional<uint64_t> RaiseDescriptorLimit();

// fcntl(F_DUPFD_CLOEXEC) and dup2(2), except that a number beyond the limit gives EMFILE, as with
// other calls, instead of EINVAL or EBADF. Return -1 with errno on error. Async-signal-safe.
int DuplicateAbove(int fd, int lowest);
int DuplicateAs(int fd, int number);  // `fd` must be open

// Grows the descriptor table to this capacity. Call it from main() before other threads start. In a
// process with several threads, each growth of the table waits for an RCU grace period (16 to 32
// ms, at descriptors 253, 509, ... on Linux 6.18), and the thread that opens the descriptor is
// delayed by it.
void WidenDescriptorTable(int descriptors = 4096);

}  // namespace stasis
