// Creates Unix sockets and passes descriptors over them, for code that uses Result and UniqueFd.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"

namespace stasis::ipc {

struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;  // for a child process; close it once the child has it
};
// Creates a pair of unix sockets, close-on-exec.
Result<SocketPair> MakeSocketPair(int type = SOCK_SEQPACKET);

// Waits until `fd` is readable or closed by the peer. Returns false at the deadline.
bool AwaitReadable(int fd, const Deadline& deadline);

// Sends one packet; `flags` are those of send(2). The caller keeps the descriptors.
Status SendPacket(int socket, const void* data, size_t size, std::span<const int> fds = {},
                  int flags = 0);

struct Packet {
  size_t size = 0;  // size as sent, may exceed the buffer; 0 at end-of-file
  std::vector<UniqueFd> fds;
  bool fds_lost = false;  // more descriptors were sent than fit, or the descriptor table is full
};
// Waits for one packet.
Result<Packet> ReceivePacket(int socket, void* data, size_t size);

// Returns the address of the socket `name` in the open directory `folder`. The address fits into
// sun_path even if the directory's path is long. `folder` must stay open while it is used.
Result<sockaddr_un> AddressIn(int folder, const std::string& name);

}  // namespace stasis::ipc
