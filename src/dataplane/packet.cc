#include "dataplane/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace stasis::dataplane {
namespace {

constexpr size_t kMaxFds = 253;  // SCM_MAX_FD in the kernel

union Control {
  cmsghdr aligned;
  char bytes[CMSG_SPACE(kMaxFds * sizeof(int))];
};

}  // namespace

Status SendPacket(int socket, const void* data, size_t size, std::span<const int> fds, int flags) {
  if (fds.size() > kMaxFds) return Fail(Code::kInternal, "too many descriptors for one packet");
  iovec part{const_cast<void*>(data), size};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  if (TEMP_FAILURE_RETRY(::sendmsg(socket, &message, MSG_NOSIGNAL | flags)) < 0) {
    return FailErrno(errno, "send");
  }
  return {};
}

Result<Packet> ReceivePacket(int socket, void* data, size_t size) {
  iovec part{data, size};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t got = TEMP_FAILURE_RETRY(::recvmsg(socket, &message, MSG_TRUNC | MSG_CMSG_CLOEXEC));
  if (got < 0) return FailErrno(errno, "receive");
  Packet packet;
  packet.size = static_cast<size_t>(got);
  packet.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof fd);
      packet.fds.emplace_back(fd);
    }
  }
  return packet;
}

}  // namespace stasis::dataplane
