// One packet with file descriptors over a unix socket: the only code that reads and writes
// SCM_RIGHTS messages. libc only, because the agent uses it inside the user's program. socket.h has
// the same for other code, with UniqueFd and Result.
//
// Safe to call from any thread. Never raises SIGPIPE. Received descriptors are close-on-exec.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace stasis::ipc {

inline constexpr uint32_t kMaxDescriptors = 253;  // SCM_MAX_FD: the kernel's limit for one packet

// Sends one packet with `count` descriptors, which the caller keeps. `flags` are those of send(2).
// Returns the number of bytes sent, or -1 with errno. Repeats the call after EINTR.
ssize_t SendWithDescriptors(int socket, const void* data, size_t size, const int* fds,
                            uint32_t count, int flags);

struct ReceivedPacket {
  ssize_t size = -1;   // as sent, may exceed the buffer; 0 at end-of-file; -1 with errno
  uint32_t count = 0;  // descriptors stored in `fds`; the caller must close them
  // More descriptors were sent than fit into `fds` or into the descriptor table; the rest are
  // closed.
  bool descriptors_lost = false;
};
// Receives one packet and at most `room` descriptors. `flags` are those of recv(2). Repeats the
// call after EINTR.
ReceivedPacket ReceiveWithDescriptors(int socket, void* data, size_t size, int* fds, uint32_t room,
                                      int flags);

}  // namespace stasis::ipc
