// A script of packets from an untrusted peer, which the fuzzers of the agent's protocol write into
// a socket unchanged.
//
//   bytes  of the script, for each packet
//   2      its length; the receiver truncates packets that are too long
//   1      the number of descriptors sent with it
//   1      flags; 1: send the header as it is in the script, otherwise with the correct magic,
//          version and length
//   …      its bytes
#pragma once

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "agent_protocol/protocol.h"
#include "base/fd.h"
#include "base/fuzz_input.h"
#include "ipc/packet.h"

namespace stasis::agent_protocol {

inline int NullFd() {
  static const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return fd;
}

// Returns the highest of four new descriptors. If it is the same before and after a test, no
// descriptor has leaked. The lowest descriptor would not show a leak, because the test also closes
// two sockets.
inline int FreeFds() {
  int fds[4];
  for (int& fd : fds) fd = dup(NullFd());
  for (int fd : fds) close(fd);
  return fds[3];
}

struct Sent {
  size_t size = 0;
  uint32_t fds = 0;
};

// Takes the next packet off the script and sends it. Returns false if the socket is full.
inline bool SendNext(FuzzInput& script, int socket, Sent* sent) {
  const size_t length = script.Number<uint16_t>();
  const uint32_t fds = std::min<uint32_t>(script.Number<uint8_t>(), 250);
  const auto bits = script.Number<uint8_t>();
  std::string bytes(script.Bytes(length));
  if ((bits & 1) == 0 && bytes.size() >= sizeof(Header)) {
    Header header;
    memcpy(&header, bytes.data(), sizeof(header));
    header = {kMagic, kVersion, header.type, uint32_t(bytes.size()), 0};
    memcpy(bytes.data(), &header, sizeof(header));
  }
  *sent = {bytes.size(), fds};
  const std::vector<int> passed(fds, NullFd());
  return ipc::SendWithDescriptors(socket, bytes.data(), bytes.size(), passed.data(), fds,
                                  MSG_DONTWAIT) == ssize_t(bytes.size());
}

struct FuzzSockets {
  FuzzSockets() {
    int ends[2];
    FuzzCheck(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    ours.Reset(ends[0]);
    theirs.Reset(ends[1]);
  }
  UniqueFd ours, theirs;
};

}  // namespace stasis::agent_protocol
