#include "agent_client/client.h"

#include <algorithm>

#include "agent_client/find.h"
#include "agent_client/retry.h"
#include "agent_protocol/packet.h"
#include "base/deadline.h"
#include "ipc/socket.h"

namespace stasis::agent_client {

using namespace agent_protocol;  // NOLINT: the messages

namespace {

using std::chrono::milliseconds;

// The time that an agent may take beyond the timeout of a step, to list the memory of the quiesced
// program.
constexpr milliseconds kRestSlack{10000};

bool Plausible(const HelloReply& hello) {
  return hello.device_count <= kMaxDevices && hello.range_count <= kMaxRanges &&
         uint32_t(hello.state) <= uint32_t(State::kShut);
}

}  // namespace

Result<AgentClient> AgentClient::Find(process::HostPid pid, milliseconds timeout) {
  STASIS_ASSIGN(ipc::SocketPair sockets, ipc::MakeSocketPair());
  STASIS_ASSIGN(const AgentHeader header, PassSocket(pid, std::move(sockets.theirs), 0, timeout));
  STASIS_ASSIGN(AgentClient client, Greet(std::move(sockets.ours), NameOfAgent(pid), timeout));
  client.goes_in_steps_ = (header.memory & kStepsTold) != 0;
  client.exports_running_ = (header.memory & kRunningTold) != 0;
  client.tells_visible_ = (header.memory & kVisibleTold) != 0;
  return client;
}

Result<AgentClient> AgentClient::Greet(UniqueFd socket, std::string who, milliseconds timeout) {
  AgentClient client(std::move(socket), std::move(who));
  STASIS_ASSIGN(client.hello_, client.AskHello(Type::kHello, timeout));
  client.socket_.Admit();
  return client;
}

Result<uint32_t> AgentClient::ReceivePacket(Packet* packet, int* fds, milliseconds timeout) {
  uint32_t count = 0;
  Io io = Receive(socket_.get(), packet, fds, &count, Milliseconds(timeout));
  if (io != Io::kOk) return Fail(IoError(io).WithContext("listening to " + who_));
  return count;
}

// Returns the error for an answer that the protocol does not allow.
Error AgentClient::Invalid() const { return IoError(Io::kBad).WithContext("listening to " + who_); }

stasis::Status AgentClient::Ask(void* packet, Type type, size_t length, const int* fds,
                                uint32_t count, milliseconds timeout) {
  Io io = Send(socket_.get(), packet, type, length, fds, count, Milliseconds(timeout));
  if (io != Io::kOk) return Fail(IoError(io).WithContext("asking " + who_));
  return {};
}

stasis::Status AgentClient::AskAndAwait(Type type, milliseconds timeout) {
  Header request;
  STASIS_TRY(Ask(&request, type, sizeof(request), nullptr, 0, timeout));
  return AwaitReply(timeout);
}

Result<Reply> AgentClient::ReceiveReply(milliseconds timeout) {
  Packet packet;
  int fds[kMaxBatch];
  STASIS_ASSIGN(uint32_t count, ReceivePacket(&packet, fds, timeout));
  if (packet.header.type == Type::kReply) return packet.reply;
  CloseAll(fds, count);
  return Fail(Invalid());
}

stasis::Status AgentClient::AwaitReply(milliseconds timeout) {
  STASIS_ASSIGN(const Reply reply, ReceiveReply(timeout));
  return Annotate(FromReply(reply), who_);
}

Result<HelloReply> AgentClient::AskHello(Type type, milliseconds timeout) {
  Header request;
  stasis::Status asked = Ask(&request, type, sizeof(request), nullptr, 0, timeout);
  if (!asked && !WasEnded(asked.error())) return Fail(std::move(asked).error());
  Packet packet;
  int fds[kMaxBatch];
  auto received = ReceivePacket(&packet, fds, timeout);
  // An agent that has another client sends its rejection before it reads this request, and may then
  // close the socket. The kernel reports the closed socket first, and returns the rejection at the
  // next call.
  if (!received && WasEnded(received.error())) received = ReceivePacket(&packet, fds, timeout);
  STASIS_ASSIGN(uint32_t count, std::move(received));
  if (packet.header.type == Type::kReply) {
    STASIS_TRY(Annotate(FromReply(packet.reply), who_));
  }
  if (packet.header.type != Type::kHelloReply || !Plausible(packet.hello)) {
    CloseAll(fds, count);
    return Fail(Invalid());
  }
  packet.hello.blocker_text[sizeof(packet.hello.blocker_text) - 1] = '\0';
  return packet.hello;
}

Result<HelloReply> AgentClient::Status(milliseconds timeout) {
  STASIS_ASSIGN(hello_, AskHello(Type::kStatus, timeout));
  return hello_;
}

Result<std::vector<agent_protocol::Uuid>> AgentClient::Visible(milliseconds timeout) {
  std::vector<agent_protocol::Uuid> gpus;
  if (!tells_visible_) return gpus;
  Header request;
  STASIS_TRY(Ask(&request, Type::kAskVisible, sizeof(request), nullptr, 0, timeout));
  Packet packet;
  int fds[kMaxBatch];
  STASIS_ASSIGN(const uint32_t count, ReceivePacket(&packet, fds, timeout));
  if (packet.header.type != Type::kVisible || packet.visible.count > kMaxDevices) {
    CloseAll(fds, count);
    return Fail(Invalid());
  }
  if (packet.visible.hides != 0) {
    gpus.assign(packet.visible.gpus, packet.visible.gpus + packet.visible.count);
  }
  return gpus;
}

stasis::Status AgentClient::AskClose(uint32_t flags, milliseconds timeout, Floor floor) {
  CloseRequest request{};
  request.flags = flags | (floor == Floor::kKeep ? uint32_t{kCloseKeepFloor} : 0);
  request.timeout_ms = uint32_t(Milliseconds(timeout));
  return Ask(&request, Type::kClose, sizeof(request), nullptr, 0, timeout);
}

stasis::Status AgentClient::Close(milliseconds timeout, Floor floor) {
  STASIS_TRY(AskClose(0, timeout, floor));
  return AwaitReply(timeout + std::chrono::seconds(1));
}

Result<bool> AgentClient::AwaitRest(milliseconds timeout) {
  STASIS_ASSIGN(const Reply reply, ReceiveReply(timeout + kRestSlack));
  shut_ = reply.state != State::kOpen;
  if (reply.outcome == Outcome::kNotYet) {
    not_yet_ = TextOf(reply);
    return false;
  }
  STASIS_TRY(Annotate(FromReply(reply), who_));
  return true;
}

Result<bool> AgentClient::CloseInSteps(milliseconds timeout, Floor floor) {
  floor_ = floor;
  STASIS_TRY(AskClose(kCloseInSteps, timeout, floor));
  return AwaitRest(timeout);
}

Result<bool> AgentClient::Rest(uint32_t calls, milliseconds timeout) {
  if (!shut_) return CloseInSteps(timeout, floor_);
  RestRequest request{};
  request.calls = calls;
  request.timeout_ms = uint32_t(Milliseconds(timeout));
  STASIS_TRY(Ask(&request, Type::kRest, sizeof(request), nullptr, 0, timeout));
  return AwaitRest(timeout);
}

Result<Export> AgentClient::AskList(Type type, Type answer, milliseconds timeout) {
  Deadline deadline = Deadline::In(timeout);
  Header request;
  STASIS_TRY(Ask(&request, type, sizeof(request), nullptr, 0, timeout));
  Export out;
  for (;;) {
    Packet packet;
    int fds[kMaxBatch];
    STASIS_ASSIGN(uint32_t count,
                  ReceivePacket(&packet, fds, milliseconds(deadline.PollTimeout())));
    // Take ownership of the descriptors now, so that an invalid packet leaks none.
    size_t before = out.ranges.size();
    for (uint32_t i = 0; i < count; ++i) out.fds.emplace_back(fds[i]);
    if (packet.header.type == Type::kReply) {
      STASIS_TRY(Annotate(FromReply(packet.reply), who_));
    }
    const Ranges& ranges = packet.ranges;
    if (packet.header.type != answer || ranges.first != before ||
        (ranges.count == 0 && ranges.total != before)) {
      return Fail(Invalid());
    }
    out.ranges.insert(out.ranges.end(), ranges.ranges, ranges.ranges + ranges.count);
    if (out.ranges.size() == ranges.total) return out;
  }
}

Result<Export> AgentClient::ExportRunning(milliseconds timeout) {
  return AskList(Type::kExportRunning, Type::kRanges, timeout);
}

Result<Export> AgentClient::ExportAll(milliseconds timeout) {
  return AskList(Type::kExport, Type::kRanges, timeout);
}

Result<std::vector<Range>> AgentClient::Describe(milliseconds timeout) {
  STASIS_ASSIGN(Export list, AskList(Type::kDescribe, Type::kDescription, timeout));
  return std::move(list.ranges);
}

stasis::Status AgentClient::Commit(milliseconds timeout) {
  return AskAndAwait(Type::kCommit, timeout);
}

stasis::Status AgentClient::Own(milliseconds timeout) { return AskAndAwait(Type::kOwn, timeout); }

stasis::Status AgentClient::Release(Hold hold, milliseconds timeout) {
  ReleaseRequest request{};
  request.hold = hold == Hold::kUntilCommit ? 1 : 0;
  STASIS_TRY(Ask(&request, Type::kRelease, sizeof(request), nullptr, 0, timeout));
  return AwaitReply(timeout);
}

stasis::Status AgentClient::Map(const std::vector<Range>& ranges, const std::vector<int>& fds,
                                milliseconds timeout) {
  if (ranges.size() != fds.size() || ranges.size() > kMaxRanges) {
    return Fail(Code::kInvalidArgument,
                "a request to map memory needs one descriptor for each range, and may have at most "
                "1048576 ranges");
  }
  Deadline deadline = Deadline::In(timeout);
  Ranges request{};
  request.total = uint32_t(ranges.size());
  do {
    request.count = std::min<uint32_t>(kMaxBatch, request.total - request.first);
    std::copy_n(ranges.begin() + request.first, request.count, request.ranges);
    milliseconds left(deadline.PollTimeout());
    STASIS_TRY(Ask(&request, Type::kMap, offsetof(Ranges, ranges) + request.count * sizeof(Range),
                   fds.data() + request.first, request.count, left));
    STASIS_TRY(AwaitReply(milliseconds(deadline.PollTimeout())));
    request.first += request.count;
  } while (request.first < request.total);
  return {};
}

stasis::Status AgentClient::Rejoin(milliseconds timeout) {
  return AskAndAwait(Type::kRejoin, timeout);
}

stasis::Status AgentClient::Open(milliseconds timeout) { return AskAndAwait(Type::kOpen, timeout); }

namespace {

// How long another client may take that asks a question. One that suspends or saves the program
// takes longer, and is reported.
constexpr milliseconds kOtherClient{300};

class InProcesses final : public Agents {
 public:
  Result<std::unique_ptr<AgentLink>> Connect(process::HostPid pid, milliseconds timeout) override {
    STASIS_ASSIGN(AgentClient client, RetryWhileBusy(std::min(timeout, kOtherClient), [&] {
                    return AgentClient::Find(pid, timeout);
                  }));
    return std::unique_ptr<AgentLink>(new AgentClient(std::move(client)));
  }
  Result<AgentHeader> ReadHeader(process::HostPid pid) override { return ReadAgentHeader(pid); }
};

}  // namespace

bool IsOutOfMemory(const Error& error) {
  constexpr int64_t kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
  return error.domain == Domain::kCuda && error.raw == kOutOfMemory;
}

Agents& AgentsInProcesses() {
  static InProcesses agents;
  return agents;
}

}  // namespace stasis::agent_client
