// Sends and receives one message with files over a unix socket. Allocates nothing, because the
// restore thread uses it.
#pragma once

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base.h"

namespace softgpu {

inline constexpr int kMaxPassedFds = 16;

inline bool SendWithFds(int socket, const void* data, size_t size, const int* fds, int count) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPassedFds)] = {};
  iovec part{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(header), fds, sizeof(int) * count);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == ssize_t(size);
}

// Receives exactly `size` bytes; returns false at end-of-file or on error. Stores `*count` files in
// `fds`.
inline bool ReceiveWithFds(int socket, void* data, size_t size, int* fds, int* count) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPassedFds)];
  *count = 0;
  for (size_t done = 0; done < size;) {
    iovec part{static_cast<char*>(data) + done, size - done};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
      int n = int((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      for (int i = 0; i < n; ++i) {
        int fd;
        memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
        if (*count < kMaxPassedFds) {
          fds[(*count)++] = fd;
        } else {
          close(fd);
        }
      }
    }
    done += size_t(got);
  }
  return true;
}

}  // namespace softgpu
