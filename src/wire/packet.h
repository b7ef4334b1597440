// Sending and receiving one packet with its descriptors. libc only; any thread, one per socket.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/protocol.h"

namespace stasis::wire {

// What came of a call: kOk, kEnd (the other side is gone), kTimeout, kBad (not a packet of ours;
// what it carried has been closed), or kError with errno set.
enum class Io { kOk, kEnd, kTimeout, kBad, kError };

// Fills the header of `packet` and sends its first `length` bytes with `count` <= kMaxBatch
// descriptors, which stay the caller's. Never raises SIGPIPE. timeout_ms < 0: no timeout.
Io Send(int socket, void* packet, Type type, size_t length, const int* fds, uint32_t count,
        int timeout_ms);

// Receives one packet. Its magic, version and length are right when this returns kOk, and its
// length is at least that of the struct which its type names; `*fds` (room for kMaxBatch,
// close-on-exec) and
// `*count` are the caller's then. A Ranges packet holds as many ranges as its count says.
Io Receive(int socket, Packet* packet, int* fds, uint32_t* count, int timeout_ms);

void CloseAll(const int* fds, uint32_t count);

// A number that a socket carries, as the seconds of its receive timeout (which nobody here waits
// by); 0: none, or no socket.
bool SetSocketMark(int socket, uint64_t mark);
uint64_t SocketMark(int socket);

// Sends one descriptor with one byte, as a client does through the door; and takes it there
// (-1: nothing that makes sense came).
Io SendDoorKnock(int door, int fd);
int ReceiveDoorKnock(int door);

}  // namespace stasis::wire
