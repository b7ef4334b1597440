// Packets with descriptors over a SOCK_SEQPACKET socket.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::dataplane {

// Sends one packet; `flags` as of send(2). The descriptors stay ours.
Status SendPacket(int socket, const void* data, size_t size, std::span<const int> fds,
                  int flags = 0);

struct Packet {
  size_t size = 0;  // as it was sent, which may be more than was received; 0: the other side ended
  std::vector<UniqueFd> fds;
  bool fds_lost = false;  // there were more, or our table is full
};
// Waits for one.
Result<Packet> ReceivePacket(int socket, void* data, size_t size);

}  // namespace stasis::dataplane
