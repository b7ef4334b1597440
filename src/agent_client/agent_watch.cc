#include "agent_client/agent_watch.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "agent_client/connection.h"
#include "agent_protocol/packet.h"
#include "base/deadline.h"
#include "ipc/socket.h"

namespace stasis::agent_client {

using namespace agent_protocol;  // NOLINT: the messages

namespace {

using std::chrono::milliseconds;

// The most packets that one call of Receive reads, so that an agent that sends without end does not
// occupy the caller.
constexpr int kMostPackets = 16;
// No GPU has more memory.
constexpr uint64_t kMostAskedBytes = uint64_t{1} << 50;

bool Plausible(const Wants& wants) {
  return wants.thread_at_gate <= 1 && wants.in_call <= 1 && wants.bytes <= kMostAskedBytes &&
         (wants.number == 0) == (wants.bytes == 0);
}

bool Same(const std::optional<AgentWants::Allocation>& a,
          const std::optional<AgentWants::Allocation>& b) {
  return a.has_value() == b.has_value() && (!a || a->number == b->number);
}

class Watch final : public AgentWatch {
 public:
  Watch(UniqueFd socket, std::string who) : socket_(std::move(socket)), who_(std::move(who)) {}

  // Waits for the first packet, which stays in the socket, so that fd() is readable.
  Status Begin(milliseconds timeout) {
    pollfd item{socket_.get(), POLLIN, 0};
    if (::poll(&item, 1, Milliseconds(timeout)) == 0) {
      return Fail(IoError(Io::kTimeout).WithContext("listening to " + who_));
    }
    if (FirstType(socket_.get()) != Type::kWants) {
      auto received = ReceiveOne();
      // If the agent has rejected this watch and closed the socket, the kernel reports the closed
      // socket first, and returns the rejection at the next call.
      if (!received && WasEnded(received.error())) received = ReceiveOne();
      STASIS_ASSIGN(const bool any, std::move(received));
      if (!any) return Fail(IoError(Io::kTimeout).WithContext("listening to " + who_));
    }
    socket_.Admit();
    return {};
  }

  int fd() const override { return socket_.get(); }

  Result<std::optional<AgentWants>> Receive() override {
    bool more = true;
    for (int i = 0; more && i < kMostPackets; ++i) {
      STASIS_ASSIGN(more, ReceiveOne());
    }
    return std::exchange(news_, std::nullopt);
  }

  Status Answer(uint64_t number, bool try_again) override {
    RoomAnswer answer{};
    answer.number = number;
    answer.try_again = try_again ? 1 : 0;
    return Tell(&answer, Type::kRoom, sizeof(answer));
  }

  const AgentUse& use() const override { return use_; }
  Status AskUse() override {
    if (asked_) return {};
    Header request;
    STASIS_TRY(Tell(&request, Type::kAskUse, sizeof(request)));
    asked_ = true;
    return {};
  }

  Status WillReturn() override {
    Header message;
    return Tell(&message, Type::kLeave, sizeof(message));
  }

 private:
  // Returns false if no packet has arrived.
  Result<bool> ReceiveOne() {
    Packet packet;
    int fds[kMaxBatch];
    uint32_t count = 0;
    const Io io = agent_protocol::Receive(socket_.get(), &packet, fds, &count, 0);
    if (io == Io::kTimeout) return false;
    if (io != Io::kOk) return Fail(IoError(io).WithContext("listening to " + who_));
    CloseAll(fds, count);
    if (packet.header.type == Type::kReply) {
      STASIS_TRY(Annotate(FromReply(packet.reply), who_));
    }
    if (packet.header.type != Type::kWants || !Plausible(packet.wants)) {
      return Fail(IoError(Io::kBad).WithContext("listening to " + who_));
    }
    Take(packet.wants);
    return true;
  }

  void Take(const Wants& packet) {
    AgentWants wants;
    wants.thread_at_gate = packet.thread_at_gate != 0;
    if (packet.number != 0) {
      wants.allocation = {packet.number, packet.bytes, packet.device, packet.attempts};
    }
    const bool first = use_.answered == AgentUse::Clock::time_point{};
    if (first || wants.thread_at_gate != wants_.thread_at_gate ||
        !Same(wants.allocation, wants_.allocation)) {
      news_ = wants;
    }
    wants_ = wants;
    const auto now = AgentUse::Clock::now();
    if (first || packet.in_call != 0 || packet.calls != use_.calls) use_.last_use = now;
    use_.calls = packet.calls;
    use_.in_call = packet.in_call != 0;
    use_.answered = now;
    asked_ = false;
  }

  Status Tell(void* packet, Type type, size_t length) {
    const Io io = Send(socket_.get(), packet, type, length, nullptr, 0, 0);
    if (io != Io::kOk) return Fail(IoError(io).WithContext("asking " + who_));
    return {};
  }

  Connection socket_;
  std::string who_;
  AgentWants wants_;                // as last received
  std::optional<AgentWants> news_;  // what Receive returns next
  AgentUse use_;
  bool asked_ = false;  // for the use, and not answered yet
};

class WatchesInProcesses final : public AgentWatches {
 public:
  WatchesInProcesses(milliseconds longest_wait, uint64_t spare_bytes)
      : longest_wait_ms_(
            static_cast<uint32_t>(std::clamp<int64_t>(longest_wait.count(), 0, UINT32_MAX))),
        spare_mib_(static_cast<uint32_t>(std::min<uint64_t>(spare_bytes >> 20, UINT32_MAX))) {}

  Result<std::unique_ptr<AgentWatch>> Connect(process::HostPid pid, milliseconds timeout) override {
    const Deadline deadline = Deadline::In(timeout);
    STASIS_ASSIGN(ipc::SocketPair sockets, ipc::MakeSocketPair());
    STASIS_TRY(SayWatch(sockets.ours.get()));
    STASIS_TRY(PassSocket(pid, std::move(sockets.theirs), kWatchTold, timeout));
    return GreetWatch(std::move(sockets.ours), NameOfAgent(pid),
                      milliseconds(deadline.PollTimeout()));
  }

 private:
  // The agent tells a watcher by the packet that is in the socket already.
  Status SayWatch(int socket) const {
    WatchRequest request{};
    request.longest_wait_ms = longest_wait_ms_;
    request.spare_mib = spare_mib_;
    const Io io = Send(socket, &request, Type::kWatch, sizeof(request), nullptr, 0, 0);
    if (io != Io::kOk) return Fail(IoError(io));
    return {};
  }

  const uint32_t longest_wait_ms_, spare_mib_;
};

}  // namespace

Result<std::unique_ptr<AgentWatch>> GreetWatch(UniqueFd socket, std::string who,
                                               milliseconds timeout) {
  auto watch = std::make_unique<Watch>(std::move(socket), std::move(who));
  STASIS_TRY(watch->Begin(timeout));
  return std::unique_ptr<AgentWatch>(std::move(watch));
}

std::unique_ptr<AgentWatches> WatchesOfProcesses(milliseconds longest_wait, uint64_t spare_bytes) {
  return std::make_unique<WatchesInProcesses>(longest_wait, spare_bytes);
}

}  // namespace stasis::agent_client
