// A watch with the answers of an invented agent.
#include "agent_client/agent_watch.h"

#include <gtest/gtest.h>
#include <poll.h>

#include "agent_protocol/packet.h"
#include "ipc/socket.h"

namespace stasis::agent_client {
namespace {

using agent_protocol::Io;
using agent_protocol::Type;
using agent_protocol::Wants;
using std::chrono::milliseconds;

constexpr milliseconds kNoWait{0};

class AgentWatchTest : public ::testing::Test {
 protected:
  AgentWatchTest() {
    auto sockets = ipc::MakeSocketPair();
    EXPECT_TRUE(sockets.has_value());
    ours_ = std::move(sockets->ours);
    agent_ = std::move(sockets->theirs);
  }
  // The agent ends first, so that the destructor of the watch does not wait.
  ~AgentWatchTest() override { agent_.Reset(); }

  void Say(Wants wants) {
    ASSERT_EQ(
        agent_protocol::Send(agent_.get(), &wants, Type::kWants, sizeof(wants), nullptr, 0, 0),
        Io::kOk);
  }
  Status Greet() {
    auto watch = GreetWatch(std::move(ours_), "an agent", kNoWait);
    if (!watch) return Fail(std::move(watch).error());
    watch_ = std::move(*watch);
    return {};
  }
  // Returns the type of the watch's next packet, or Type{} if there is none.
  Type Hear() {
    int fds[agent_protocol::kMaxBatch];
    uint32_t count = 0;
    const Io io = agent_protocol::Receive(agent_.get(), &packet_, fds, &count, 0);
    return io == Io::kOk ? packet_.header.type : Type{};
  }
  bool IsReadable() const {
    pollfd item{watch_->fd(), POLLIN, 0};
    return ::poll(&item, 1, 0) == 1;
  }

  std::unique_ptr<AgentWatch> watch_;
  UniqueFd ours_, agent_;
  agent_protocol::Packet packet_;
};

Wants Waiting(uint64_t number) {
  Wants wants{};
  wants.number = number;
  wants.bytes = 3 << 20;
  wants.device.bytes[15] = 9;
  wants.attempts = 2;
  return wants;
}

TEST_F(AgentWatchTest, ReturnsTheFirstStateAndThenChanges) {
  Say(Waiting(5));
  ASSERT_TRUE(Greet());
  EXPECT_TRUE(IsReadable());
  auto wants = watch_->Receive();
  ASSERT_TRUE(wants && *wants);
  EXPECT_FALSE((*wants)->thread_at_gate);
  ASSERT_TRUE((*wants)->allocation);
  EXPECT_EQ((*wants)->allocation->number, 5u);
  EXPECT_EQ((*wants)->allocation->bytes, uint64_t{3} << 20);
  EXPECT_EQ((*wants)->allocation->gpu.bytes[15], 9);
  EXPECT_EQ((*wants)->allocation->attempts, 2u);
  EXPECT_FALSE(IsReadable());
  wants = watch_->Receive();
  ASSERT_TRUE(wants);
  EXPECT_FALSE(*wants) << "nothing has arrived";
  Say(Waiting(5));
  EXPECT_TRUE(IsReadable());
  wants = watch_->Receive();
  ASSERT_TRUE(wants);
  EXPECT_FALSE(*wants) << "nothing has changed";
  // Only the last one counts.
  Say(Waiting(6));
  Wants at_gate{};
  at_gate.thread_at_gate = 1;
  Say(at_gate);
  wants = watch_->Receive();
  ASSERT_TRUE(wants && *wants);
  EXPECT_TRUE((*wants)->thread_at_gate);
  EXPECT_FALSE((*wants)->allocation);
}

TEST_F(AgentWatchTest, SendsAnswers) {
  Say({});
  ASSERT_TRUE(Greet());
  ASSERT_TRUE(watch_->Answer(77, true));
  ASSERT_EQ(Hear(), Type::kRoom);
  EXPECT_EQ(packet_.room.number, 77u);
  EXPECT_EQ(packet_.room.try_again, 1u);
  ASSERT_TRUE(watch_->Answer(78, false));
  ASSERT_EQ(Hear(), Type::kRoom);
  EXPECT_EQ(packet_.room.try_again, 0u);
}

TEST_F(AgentWatchTest, SaysThatAnotherWatchWillCome) {
  Say({});
  ASSERT_TRUE(Greet());
  ASSERT_TRUE(watch_->WillReturn());
  EXPECT_EQ(Hear(), Type::kLeave);
}

TEST_F(AgentWatchTest, KnowsTheLastUse) {
  Wants wants{};
  wants.calls = 10;
  Say(wants);
  const auto begin = AgentUse::Clock::now();
  ASSERT_TRUE(Greet());
  ASSERT_TRUE(watch_->Receive());
  const AgentUse& use = watch_->use();
  EXPECT_EQ(use.calls, 10u);
  EXPECT_FALSE(use.in_call);
  EXPECT_GE(use.last_use, begin) << "a use before the connection is unknown";
  const auto first = use.last_use;
  ASSERT_TRUE(watch_->AskUse());
  EXPECT_EQ(Hear(), Type::kAskUse);
  ASSERT_TRUE(watch_->AskUse());
  EXPECT_EQ(Hear(), Type{}) << "an agent that does not answer is not asked again";

  Say(wants);
  ASSERT_TRUE(watch_->Receive());
  EXPECT_EQ(use.last_use, first);
  EXPECT_GE(use.answered, first);
  ASSERT_TRUE(watch_->AskUse());
  EXPECT_EQ(Hear(), Type::kAskUse);

  wants.in_call = 1;
  Say(wants);
  ASSERT_TRUE(watch_->Receive());
  EXPECT_TRUE(use.in_call);
  EXPECT_EQ(use.last_use, use.answered);

  wants.in_call = 0;
  wants.calls = 11;
  Say(wants);
  ASSERT_TRUE(watch_->Receive());
  EXPECT_EQ(use.last_use, use.answered);
}

TEST_F(AgentWatchTest, IsRejectedWithTheAgentsReason) {
  agent_protocol::Reply reply{};
  reply.outcome = agent_protocol::Outcome::kBusy;
  snprintf(reply.text, sizeof(reply.text), "another watcher is connected");
  ASSERT_EQ(agent_protocol::Send(agent_.get(), &reply, Type::kReply, sizeof(reply), nullptr, 0, 0),
            Io::kOk);
  const Status greeted = Greet();
  ASSERT_FALSE(greeted);
  EXPECT_EQ(greeted.error().code, Code::kAborted);
  EXPECT_NE(greeted.error().ToString().find("another watcher is connected"), std::string::npos);
}

TEST_F(AgentWatchTest, AnAgentThatDoesNotAnswerIsAnError) {
  const Status greeted = Greet();
  ASSERT_FALSE(greeted);
  EXPECT_EQ(greeted.error().code, Code::kDeadlineExceeded);
}

TEST_F(AgentWatchTest, TheEndOfTheProgramIsAnError) {
  Say({});
  ASSERT_TRUE(Greet());
  ASSERT_TRUE(watch_->Receive());
  EXPECT_FALSE(IsReadable());
  agent_.Reset();
  EXPECT_TRUE(IsReadable());
  const auto received = watch_->Receive();
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, Code::kUnavailable);
}

TEST_F(AgentWatchTest, ImplausibleStatesAreRejected) {
  Say({});
  ASSERT_TRUE(Greet());
  std::vector<Wants> all(6);
  all[0].thread_at_gate = 2;
  all[1].in_call = 7;
  all[2].bytes = 1;
  all[3].number = 1;
  all[4] = Waiting(1);
  all[4].bytes = uint64_t{1} << 51;
  all[5] = Waiting(1);
  all[5].bytes = UINT64_MAX;
  for (size_t i = 0; i < all.size(); ++i) {
    Say(all[i]);
    const auto received = watch_->Receive();
    ASSERT_FALSE(received) << i;
    EXPECT_EQ(received.error().code, Code::kUnavailable);
  }
  agent_protocol::HelloReply hello{};
  ASSERT_EQ(
      agent_protocol::Send(agent_.get(), &hello, Type::kHelloReply, sizeof(hello), nullptr, 0, 0),
      Io::kOk);
  EXPECT_FALSE(watch_->Receive());
}

// A program may send without end.
TEST_F(AgentWatchTest, OneCallReadsABoundedNumberOfPackets) {
  Say({});
  ASSERT_TRUE(Greet());
  for (uint64_t number = 1; number <= 40; ++number) Say(Waiting(number));
  uint64_t last = 0;
  for (int calls = 1; IsReadable(); ++calls) {
    const auto wants = watch_->Receive();
    ASSERT_TRUE(wants && *wants && (*wants)->allocation);
    EXPECT_LE((*wants)->allocation->number, last + 16);
    last = (*wants)->allocation->number;
    ASSERT_LT(calls, 10);
  }
  EXPECT_EQ(last, 40u);
}

// The program is stopped: its socket fills up.
TEST_F(AgentWatchTest, AnAgentThatDoesNotReadDoesNotBlock) {
  Say({});
  ASSERT_TRUE(Greet());
  Status answered;
  for (int i = 0; i < 100000 && answered; ++i) answered = watch_->Answer(1, true);
  ASSERT_FALSE(answered);
  EXPECT_EQ(answered.error().code, Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace stasis::agent_client
