#include "wire/packet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace stasis::wire {
namespace {

int64_t NowMs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

Io Await(int socket, short events, int64_t until_ms) {
  for (;;) {
    int left = -1;
    if (until_ms >= 0) {
      int64_t span = until_ms - NowMs();
      left = span < 0 ? 0 : int(span);
    }
    pollfd item{socket, events, 0};
    int n = poll(&item, 1, left);
    if (n > 0) return Io::kOk;
    if (n == 0) return Io::kTimeout;
    if (errno != EINTR) return Io::kError;
  }
}

// A control buffer with the alignment that CMSG_FIRSTHDR wants.
union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(kMaxBatch * sizeof(int))];
};

struct Bounds {
  Type type;
  size_t least;
  size_t most;
};
constexpr Bounds kBounds[] = {
    {Type::kHello, sizeof(Header), sizeof(Header)},
    {Type::kStatus, sizeof(Header), sizeof(Header)},
    {Type::kClose, sizeof(CloseRequest), sizeof(CloseRequest)},
    {Type::kRest, sizeof(RestRequest), sizeof(RestRequest)},
    {Type::kExport, sizeof(Header), sizeof(Header)},
    {Type::kRelease, sizeof(ReleaseRequest), sizeof(ReleaseRequest)},
    {Type::kCommit, sizeof(Header), sizeof(Header)},
    {Type::kMap, offsetof(Ranges, ranges), sizeof(Ranges)},
    {Type::kOpen, sizeof(Header), sizeof(Header)},
    {Type::kDescribe, sizeof(Header), sizeof(Header)},
    {Type::kOwn, sizeof(Header), sizeof(Header)},
    {Type::kRejoin, sizeof(Header), sizeof(Header)},
    {Type::kIpcGive, sizeof(IpcRequest), sizeof(IpcRequest)},
    {Type::kIpcWait, sizeof(IpcRequest), sizeof(IpcRequest)},
    {Type::kIpcAway, sizeof(IpcRequest), sizeof(IpcRequest)},
    {Type::kIpcAnswer, sizeof(IpcAnswer), sizeof(IpcAnswer)},
    {Type::kReply, sizeof(Reply), sizeof(Reply)},
    {Type::kHelloReply, sizeof(HelloReply), sizeof(HelloReply)},
    {Type::kRanges, offsetof(Ranges, ranges), sizeof(Ranges)},
    {Type::kDescription, offsetof(Ranges, ranges), sizeof(Ranges)},
};

bool MakesSense(const Packet& packet, size_t got, uint32_t fds) {
  const Header& header = packet.header;
  if (got < sizeof(Header) || header.magic != kMagic || header.version != kVersion ||
      header.length != got) {
    return false;
  }
  for (const Bounds& bounds : kBounds) {
    if (bounds.type != header.type) continue;
    if (got < bounds.least || got > bounds.most) return false;
    if (header.type == Type::kIpcAnswer) {
      return fds == (packet.ipc_answer.outcome == IpcOutcome::kGiven ? 1 : 0);
    }
    const bool described = header.type == Type::kDescription;
    if (header.type != Type::kMap && header.type != Type::kRanges && !described) return fds == 0;
    const Ranges& ranges = packet.ranges;
    return ranges.count <= kMaxBatch && fds == (described ? 0 : ranges.count) &&
           ranges.total <= kMaxRanges && ranges.first <= ranges.total &&
           ranges.count <= ranges.total - ranges.first &&
           got == offsetof(Ranges, ranges) + ranges.count * sizeof(Range);
  }
  return false;
}

// Takes every descriptor out of a message; those that do not fit are closed.
uint32_t TakeDescriptors(msghdr* message, int* fds, uint32_t room, bool* too_many) {
  uint32_t count = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
      if (count < room) {
        fds[count++] = fd;
      } else {
        close(fd);
        *too_many = true;
      }
    }
  }
  return count;
}

}  // namespace

void CloseAll(const int* fds, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) close(fds[i]);
}

Io Send(int socket, void* packet, Type type, size_t length, const int* fds, uint32_t count,
        int timeout_ms) {
  auto* header = static_cast<Header*>(packet);
  *header = {kMagic, kVersion, type, uint32_t(length), 0};
  iovec part{packet, length};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control;
  if (count > 0) {
    memset(&control, 0, sizeof(control));
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(c), fds, count * sizeof(int));
  }
  int64_t until = timeout_ms < 0 ? -1 : NowMs() + timeout_ms;
  for (;;) {
    ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n == ssize_t(length)) return Io::kOk;
    if (n >= 0) return Io::kError;
    if (errno == EPIPE || errno == ECONNRESET) return Io::kEnd;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Io::kError;
    if (Io io = Await(socket, POLLOUT, until); io != Io::kOk) return io;
  }
}

Io Receive(int socket, Packet* packet, int* fds, uint32_t* count, int timeout_ms) {
  *count = 0;
  int64_t until = timeout_ms < 0 ? -1 : NowMs() + timeout_ms;
  for (;;) {
    if (Io io = Await(socket, POLLIN, until); io != Io::kOk) return io;
    iovec part{packet, sizeof(*packet)};
    Control control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof(control);
    ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK) continue;
      return errno == ECONNRESET ? Io::kEnd : Io::kError;
    }
    bool bad = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    uint32_t got = TakeDescriptors(&message, fds, kMaxBatch, &bad);
    if (n == 0 && got == 0) return Io::kEnd;
    if (bad || !MakesSense(*packet, size_t(n), got)) {
      CloseAll(fds, got);
      return Io::kBad;
    }
    *count = got;
    return Io::kOk;
  }
}

bool SetSocketMark(int socket, uint64_t mark) {
  timeval span{time_t(mark), 0};
  return setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &span, sizeof(span)) == 0;
}

uint64_t SocketMark(int socket) {
  timeval span{};
  socklen_t size = sizeof(span);
  if (getsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &span, &size) != 0) return 0;
  return uint64_t(span.tv_sec);
}

Io SendDoorKnock(int door, int fd) {
  char byte = 1;
  iovec part{&byte, 1};
  union {
    cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof(control);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  ssize_t n;
  do {
    n = sendmsg(door, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n == 1) return Io::kOk;
  return errno == EPIPE || errno == ECONNRESET ? Io::kEnd : Io::kError;
}

int ReceiveDoorKnock(int door) {
  char bytes[64];
  iovec part{bytes, sizeof(bytes)};
  Control control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof(control);
  ssize_t n = recvmsg(door, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n < 0) return -1;
  int fds[kMaxBatch];
  bool too_many = false;
  uint32_t count = TakeDescriptors(&message, fds, kMaxBatch, &too_many);
  int type = 0;
  socklen_t size = sizeof(type);
  if (n == 1 && bytes[0] == 1 && count == 1 && !too_many &&
      (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
      getsockopt(fds[0], SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET) {
    return fds[0];
  }
  CloseAll(fds, count);
  return -1;
}

}  // namespace stasis::wire
