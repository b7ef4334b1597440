// Packets with descriptors over a SOCK_SEQPACKET socket.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::dataplane {

// Sends one packet; `flags` as for send(2). The caller keeps the descriptors.
Status SendPacket(int socket, const void* data, size_t size, std::span<const int> fds,
                  int flags = 0);

struct Packet {
  size_t size = 0;  // size as sent, may exceed the buffer; 0 at end-of-file
  std::vector<UniqueFd> fds;
  bool fds_lost = false;  // more descriptors were sent than fit, or the descriptor table is full
};
// Waits for one packet.
Result<Packet> ReceivePacket(int socket, void* data, size_t size);

}  // namespace stasis::dataplane
