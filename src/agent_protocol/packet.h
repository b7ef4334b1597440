// Sending and receiving one packet with its descriptors. Uses libc only. A socket must be used by
// one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "agent_protocol/protocol.h"

namespace stasis::agent_protocol {

// The result of a call: kOk, kEnd (the peer has disconnected), kTimeout, kBad (not a valid packet;
// its descriptors have been closed), or kError with errno set.
enum class Io { kOk, kEnd, kTimeout, kBad, kError };

// Fills the header of `packet` and sends its first `length` bytes with `count` <= kMaxBatch
// descriptors, which stay the caller's. Never raises SIGPIPE. timeout_ms < 0: no timeout.
Io Send(int socket, void* packet, Type type, size_t length, const int* fds, uint32_t count,
        int timeout_ms);

// Receives one packet. With kOk, its magic, version and length are valid, its length is at least
// that of the struct for its type, and a Ranges packet contains `count` ranges. `fds` (room for
// kMaxBatch) then holds `*count` descriptors, close-on-exec, which the caller must close.
Io Receive(int socket, Packet* packet, int* fds, uint32_t* count, int timeout_ms);

void CloseAll(const int* fds, uint32_t count);

// A mark: a number that a socket carries in the seconds of its receive timeout, which is not used
// otherwise. SocketMark returns 0 if the descriptor has no mark or is not a socket.
bool SetSocketMark(int socket, uint64_t mark);
uint64_t SocketMark(int socket);

// Sends a client's socket with one byte over the control socket. ReceiveClientSocket returns it on
// the agent's side, or -1 if the message was not valid.
Io SendClientSocket(int control, int fd);
int ReceiveClientSocket(int control);

// Returns the type of the next packet, which stays in the socket, or Type{} if none has arrived.
// The packet is not checked further. Does not block.
Type FirstType(int socket);

}  // namespace stasis::agent_protocol
