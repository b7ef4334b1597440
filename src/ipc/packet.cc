#include "ipc/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace stasis::ipc {
namespace {

// CMSG_FIRSTHDR requires this alignment.
union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
};

msghdr MessageOf(iovec* part) {
  msghdr message{};
  message.msg_iov = part;
  message.msg_iovlen = 1;
  return message;
}

}  // namespace

ssize_t SendWithDescriptors(int socket, const void* data, size_t size, const int* fds,
                            uint32_t count, int flags) {
  if (count > kMaxDescriptors) {
    errno = EINVAL;
    return -1;
  }
  iovec part{const_cast<void*>(data), size};
  msghdr message = MessageOf(&part);
  Control control;
  if (count > 0) {
    memset(&control, 0, sizeof(control));
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | flags);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ReceivedPacket ReceiveWithDescriptors(int socket, void* data, size_t size, int* fds, uint32_t room,
                                      int flags) {
  iovec part{data, size};
  msghdr message = MessageOf(&part);
  Control control;
  message.msg_control = &control;
  message.msg_controllen = sizeof(control);
  ReceivedPacket packet;
  do {
    packet.size = recvmsg(socket, &message, MSG_TRUNC | MSG_CMSG_CLOEXEC | flags);
  } while (packet.size < 0 && errno == EINTR);
  if (packet.size < 0) return packet;
  packet.descriptors_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      if (packet.count < room) {
        fds[packet.count++] = fd;
      } else {
        close(fd);
        packet.descriptors_lost = true;
      }
    }
  }
  return packet;
}

}  // namespace stasis::ipc
