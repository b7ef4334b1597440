#include "agent_protocol/packet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "ipc/packet.h"

namespace stasis::agent_protocol {
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
    {Type::kExportRunning, sizeof(Header), sizeof(Header)},
    {Type::kRejoin, sizeof(Header), sizeof(Header)},
    {Type::kWatch, sizeof(WatchRequest), sizeof(WatchRequest)},
    {Type::kLeave, sizeof(Header), sizeof(Header)},
    {Type::kAskUse, sizeof(Header), sizeof(Header)},
    {Type::kRoom, sizeof(RoomAnswer), sizeof(RoomAnswer)},
    {Type::kWants, sizeof(Wants), sizeof(Wants)},
    {Type::kAskVisible, sizeof(Header), sizeof(Header)},
    {Type::kVisible, sizeof(Visible), sizeof(Visible)},
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

}  // namespace

void CloseAll(const int* fds, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) close(fds[i]);
}

Io Send(int socket, void* packet, Type type, size_t length, const int* fds, uint32_t count,
        int timeout_ms) {
  *static_cast<Header*>(packet) = {kMagic, kVersion, type, uint32_t(length), 0};
  int64_t until = timeout_ms < 0 ? -1 : NowMs() + timeout_ms;
  for (;;) {
    ssize_t n = ipc::SendWithDescriptors(socket, packet, length, fds, count, MSG_DONTWAIT);
    if (n == ssize_t(length)) return Io::kOk;
    if (n >= 0) return Io::kError;
    if (errno == EPIPE || errno == ECONNRESET) return Io::kEnd;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return Io::kError;
    if (Io io = Await(socket, POLLOUT, until); io != Io::kOk) return io;
  }
}

Io Receive(int socket, Packet* packet, int* fds, uint32_t* count, int timeout_ms) {
  *count = 0;
  int64_t until = timeout_ms < 0 ? -1 : NowMs() + timeout_ms;
  for (;;) {
    if (Io io = Await(socket, POLLIN, until); io != Io::kOk) return io;
    const ipc::ReceivedPacket got =
        ipc::ReceiveWithDescriptors(socket, packet, sizeof(*packet), fds, kMaxBatch, MSG_DONTWAIT);
    if (got.size < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) continue;
      return errno == ECONNRESET ? Io::kEnd : Io::kError;
    }
    if (got.size == 0 && got.count == 0) return Io::kEnd;
    if (got.descriptors_lost || !MakesSense(*packet, size_t(got.size), got.count)) {
      CloseAll(fds, got.count);
      return Io::kBad;
    }
    *count = got.count;
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

Io SendClientSocket(int control, int fd) {
  const char byte = 1;
  if (ipc::SendWithDescriptors(control, &byte, 1, &fd, 1, MSG_DONTWAIT) == 1) return Io::kOk;
  return errno == EPIPE || errno == ECONNRESET ? Io::kEnd : Io::kError;
}

int ReceiveClientSocket(int control) {
  char byte = 0;
  int fds[kMaxBatch];
  const ipc::ReceivedPacket got =
      ipc::ReceiveWithDescriptors(control, &byte, 1, fds, kMaxBatch, MSG_DONTWAIT);
  int type = 0;
  socklen_t size = sizeof(type);
  if (got.size == 1 && byte == 1 && got.count == 1 && !got.descriptors_lost &&
      getsockopt(fds[0], SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET) {
    return fds[0];
  }
  CloseAll(fds, got.count);
  return -1;
}

Type FirstType(int socket) {
  Header header{};
  const ssize_t n = recv(socket, &header, sizeof(header), MSG_PEEK | MSG_DONTWAIT);
  return n == ssize_t(sizeof(header)) && header.magic == kMagic ? header.type : Type{};
}

}  // namespace stasis::agent_protocol
