// Fuzzes the packets that an agent receives from an untrusted client, and the message on
// its control socket.
#include "agent_protocol/packet.h"

#include "agent_protocol/packet_fuzz.h"

namespace stasis::agent_protocol {
namespace {

// The minimum lengths that a receiver relies on, written down independently of packet.cc.
size_t LeastBytes(Type type) {
  switch (type) {
    case Type::kClose:
      return sizeof(CloseRequest);
    case Type::kRelease:
      return sizeof(ReleaseRequest);
    case Type::kWatch:
      return sizeof(WatchRequest);
    case Type::kRoom:
      return sizeof(RoomAnswer);
    case Type::kWants:
      return sizeof(Wants);
    case Type::kReply:
      return sizeof(Reply);
    case Type::kHelloReply:
      return sizeof(HelloReply);
    case Type::kIpcGive:
    case Type::kIpcWait:
    case Type::kIpcAway:
      return sizeof(IpcRequest);
    case Type::kIpcAnswer:
      return sizeof(IpcAnswer);
    case Type::kMap:
    case Type::kRanges:
    case Type::kDescription:
      return offsetof(Ranges, ranges);
    default:
      return sizeof(Header);
  }
}

void Listen(FuzzInput script) {
  FuzzSockets sockets;
  while (!script.empty()) {
    Sent sent;
    if (!SendNext(script, sockets.theirs.get(), &sent)) return;
    const Type first = FirstType(sockets.ours.get());
    Packet packet;
    int fds[kMaxBatch];
    uint32_t count = 0;
    Io io = Receive(sockets.ours.get(), &packet, fds, &count, 0);
    FuzzCheck(io == Io::kOk || io == Io::kBad || io == Io::kEnd);
    if (io != Io::kOk) continue;
    FuzzCheck(packet.header.magic == kMagic && packet.header.version == kVersion);
    FuzzCheck(packet.header.type == first);
    FuzzCheck(packet.header.length == sent.size && sent.size <= sizeof(packet));
    FuzzCheck(count == sent.fds && sent.size >= LeastBytes(packet.header.type));
    const Ranges& ranges = packet.ranges;
    switch (packet.header.type) {
      case Type::kMap:
      case Type::kRanges:
        FuzzCheck(count == ranges.count);
        [[fallthrough]];
      case Type::kDescription:
        FuzzCheck(ranges.count <= kMaxBatch && ranges.total <= kMaxRanges);
        FuzzCheck(uint64_t{ranges.first} + ranges.count <= ranges.total);
        FuzzCheck(sent.size >= offsetof(Ranges, ranges) + ranges.count * sizeof(Range));
        break;
      case Type::kIpcAnswer:
        FuzzCheck(count == (packet.ipc_answer.outcome == IpcOutcome::kGiven ? 1 : 0));
        break;
      default:
        FuzzCheck(count == 0);
    }
    CloseAll(fds, count);
  }
}

void SendToControl(FuzzInput script) {
  FuzzSockets control;
  Sent sent;
  if (!SendNext(script, control.theirs.get(), &sent)) return;
  FuzzCheck(ReceiveClientSocket(control.ours.get()) < 0);  // /dev/null is not a socket
}

}  // namespace
}  // namespace stasis::agent_protocol

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::agent_protocol;
  const int free = FreeFds();
  Listen({data, size});
  SendToControl({data, size});
  stasis::FuzzCheck(FreeFds() == free);
  return 0;
}
