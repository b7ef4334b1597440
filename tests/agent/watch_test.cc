// A watch of a program: threads at its gate, and allocations that wait until another process has
// made room.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <optional>

#include "agent_client/agent_watch.h"
#include "stand.h"

namespace stasis::agent_test {
namespace {

using agent_client::AgentWants;
using agent_client::AgentWatch;

constexpr uint64_t kMiB = 1 << 20;

std::unique_ptr<AgentWatch> WatchOf(const Target& target) {
  auto watch = agent_client::WatchesOfProcesses(kLong)->Connect(target.pid(), kLong);
  EXPECT_TRUE(watch.has_value()) << watch.error().ToString();
  return watch ? std::move(*watch) : nullptr;
}

// Returns the next change of what the program wants.
AgentWants Next(AgentWatch& watch) {
  for (;;) {
    pollfd item{watch.fd(), POLLIN, 0};
    if (poll(&item, 1, int(kLong.count())) != 1) break;
    auto wants = watch.Receive();
    if (!wants) {
      ADD_FAILURE() << wants.error().ToString();
      return {};
    }
    if (*wants) return **wants;
  }
  ADD_FAILURE() << "the agent says nothing";
  return {};
}

// Waits for an allocation with another number.
AgentWants::Allocation NextAllocation(AgentWatch& watch) {
  for (int i = 0; i < 10; ++i) {
    const AgentWants wants = Next(watch);
    if (wants.allocation) return *wants.allocation;
  }
  ADD_FAILURE() << "no allocation waits";
  return {};
}

std::string Bytes(uint64_t bytes) { return " " + std::to_string(bytes); }

constexpr uint64_t kPiece = 64 * kMiB;

// Fills the GPU, except for half a piece. Returns a piece of this size; when it is freed, another
// one fits.
std::string Fill(Target& target) {
  UseGpu();
  const uint64_t most = (FreeBytes() - kPiece * 3 / 2) / (2 * kMiB) * (2 * kMiB);
  EXPECT_FALSE(target.Ask("alloc" + Bytes(most)).starts_with("error"));
  return target.Ask("alloc" + Bytes(kPiece));
}

// Takes the rest of the memory, down to `least` bytes.
void FillUp(Target& target, uint64_t least) {
  for (uint64_t bytes = kPiece / 2; bytes >= least;) {
    if (target.Ask("alloc" + Bytes(bytes)).starts_with("error")) bytes /= 2;
  }
}

agent_client::Export Suspend(agent_client::AgentClient& client) {
  EXPECT_TRUE(client.Close(kLong));
  auto taken = client.ExportAll(kLong);
  EXPECT_TRUE(taken.has_value());
  EXPECT_TRUE(client.Release(kNot, kLong));
  return taken ? std::move(*taken) : agent_client::Export{};
}

void Resume(agent_client::AgentClient& client, const agent_client::Export& taken) {
  ASSERT_DONE(client.Map(taken.ranges, Numbers(taken.fds), kLong));
  ASSERT_DONE(client.Open(kLong));
}

TEST(Watch, SeesAThreadAtTheGateOfASuspendedProgram) {
  Target target({"direct"});
  const std::string piece = target.Ask("alloc" + Bytes(20 * kMiB));
  target.Ask("fill " + piece + " 3");
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  EXPECT_FALSE(Next(*watch).thread_at_gate);
  for (int round = 0; round < 3; ++round) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    const agent_client::Export taken = Suspend(*client);
    pollfd item{watch->fd(), POLLIN, 0};
    EXPECT_EQ(poll(&item, 1, 50), 0) << "nothing waits yet";
    target.Say("check " + piece + " 3");
    EXPECT_TRUE(Next(*watch).thread_at_gate);
    Resume(*client, taken);
    EXPECT_EQ(target.Hear(), "right");
    EXPECT_FALSE(Next(*watch).thread_at_gate);
  }
}

// The agent would know nothing of a thread that waits in the driver.
TEST(Watch, SeesAThreadThatTheLockWouldHold) {
  Target target({"direct"});
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  EXPECT_FALSE(Next(*watch).thread_at_gate);
  auto client = target.Connect();
  ASSERT_DONE(client);
  const agent_client::Export taken = Suspend(*client);
  target.Say("limit");
  EXPECT_TRUE(Next(*watch).thread_at_gate);
  Resume(*client, taken);
  EXPECT_EQ(target.Hear(), "1024");
}

// A new watch, perhaps of another daemon, learns what an earlier one knew.
TEST(Watch, IsToldAtOnceWhatAlreadyWaits) {
  Target target({"direct"});
  const std::string piece = target.Ask("alloc" + Bytes(20 * kMiB));
  target.Ask("fill " + piece + " 3");
  auto client = target.Connect();
  ASSERT_DONE(client);
  const agent_client::Export taken = Suspend(*client);
  target.Say("check " + piece + " 3");
  for (int round = 0; round < 3; ++round) {
    auto watch = WatchOf(target);
    ASSERT_NE(watch, nullptr);
    for (int i = 0; !Next(*watch).thread_at_gate && i < 1; ++i) {
    }
    EXPECT_FALSE(target.Speaks()) << "the thread stays at the gate when the watch ends";
  }
  Resume(*client, taken);
  EXPECT_EQ(target.Hear(), "right");
}

TEST(Watch, OnlyOneAtATimeBesideAClient) {
  Target target({"direct"});
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  auto second = agent_client::WatchesOfProcesses(kLong)->Connect(target.pid(), kLong);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kAborted);
  ASSERT_DONE(client->Status(kLong));
  watch.reset();
  EXPECT_NE(WatchOf(target), nullptr);
}

// CRIU refuses a program that has the socket of a watch still open.
TEST(Watch, IsGoneFromTheProgramWhenItHasEnded) {
  Target target({"direct"});
  const int sockets = SocketsOf(target.pid());
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  EXPECT_FALSE(agent_client::WatchesOfProcesses(kLong)->Connect(target.pid(), kLong).has_value());
  EXPECT_GT(SocketsOf(target.pid()), sockets);
  watch.reset();
  EXPECT_EQ(SocketsOf(target.pid()), sockets);
}

#if defined(__x86_64__)
// The agent inside a running program cannot be replaced.
TEST(Watch, IsNotOfferedByAnAgentOfAnEarlierVersion) {
  setenv("LD_PRELOAD", EARLIER_AGENT, 1);
  Target target({"direct"}, /*agent=*/false);
  unsetenv("LD_PRELOAD");
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto watch = agent_client::WatchesOfProcesses(kLong)->Connect(target.pid(), kLong);
  ASSERT_FALSE(watch.has_value());
  EXPECT_EQ(watch.error().code, Code::kUnimplemented) << watch.error().ToString();
  ASSERT_DONE(client->Status(kLong));
}
#endif

TEST(Watch, SeesTheUseOfTheGpu) {
  Target target({"direct"});
  target.Ask("sync 0");
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  (void)Next(*watch);  // what the agent says at first, unasked
  const auto ask = [&] {
    const auto before = watch->use().answered;
    EXPECT_TRUE(watch->AskUse());
    pollfd item{watch->fd(), POLLIN, 0};
    while (watch->use().answered == before && poll(&item, 1, int(kLong.count())) == 1) {
      EXPECT_TRUE(watch->Receive());
    }
    return watch->use();
  };
  const auto idle = ask();
  EXPECT_FALSE(idle.in_call);
  EXPECT_EQ(ask().calls, idle.calls);
  EXPECT_EQ(ask().last_use, idle.last_use);
  target.Ask("sync 0");
  const auto used = ask();
  EXPECT_GT(used.calls, idle.calls);
  EXPECT_GT(used.last_use, idle.last_use);
  // A thread that waits for the GPU uses it.
  ASSERT_EQ(target.Ask("slow 1000"), "ok");
  target.Say("sync 0");
  bool seen = false;
  while (!seen && !target.SpeaksWithin(milliseconds(1))) seen = ask().in_call;
  EXPECT_TRUE(seen);
  EXPECT_EQ(target.Hear(), "0");
  EXPECT_FALSE(ask().in_call);
}

// The memory that is left is for the contexts of a suspend.
TEST(Watch, AnAllocationThatLeavesTooLittleWaits) {
  UseGpu();
  Target target({"direct"});
  auto watch = agent_client::WatchesOfProcesses(kLong, 1024 * kMiB)->Connect(target.pid(), kLong);
  ASSERT_DONE(watch);
  (void)Next(**watch);
  const uint64_t bytes = (FreeBytes() - 16 * kMiB) / (2 * kMiB) * (2 * kMiB);
  for (bool fails : {false, true}) {
    target.Say("alloc" + Bytes(bytes));
    const AgentWants::Allocation waits = NextAllocation(**watch);
    EXPECT_EQ(waits.bytes, bytes);
    ASSERT_DONE((*watch)->Answer(waits.number, false));
    const std::string piece = target.Hear();
    // Nothing can leave, so the driver decides.
    if (fails) {
      EXPECT_EQ(piece, "error 2");
    } else {
      EXPECT_EQ(target.Ask("fill " + piece + " 5"), "ok");
      EXPECT_EQ(target.Ask("check " + piece + " 5"), "right");
    }
  }
}

// The parameter is the target's command.
class Room : public ::testing::TestWithParam<const char*> {
 protected:
  // "vmm BYTES COUNT", "pool-alloc BYTES STREAM"
  std::string Command() const {
    const std::string verb = GetParam();
    return verb + Bytes(kPiece) + (verb == "vmm" ? " 1" : verb == "pool-alloc" ? " 0" : "");
  }

  // Fills the GPU and lets the target wait for more.
  void SetUp() override {
    held_ = Fill(other_);
    watch_ = WatchOf(target_);
    ASSERT_NE(watch_, nullptr);
    Next(*watch_);
    target_.Say(Command());
    waits_ = NextAllocation(*watch_);
    EXPECT_EQ(waits_.bytes, kPiece);
    EXPECT_NE(waits_.number, 0u);
    EXPECT_FALSE(target_.Speaks());
  }
  void MakeRoom() { EXPECT_EQ(other_.Ask("free " + held_), "0"); }
  void ExpectAllocated() {
    const std::string piece = target_.Hear();
    EXPECT_EQ(target_.Ask("fill " + piece + " 5"), "ok");
    EXPECT_EQ(target_.Ask("check " + piece + " 5"), "right");
  }

  Target other_{{"direct"}}, target_{{"direct"}};
  std::string held_;
  std::unique_ptr<AgentWatch> watch_;
  AgentWants::Allocation waits_;
};

TEST_P(Room, AnAllocationWaitsUntilAnotherProcessHasMadeRoom) {
  auto client = target_.Connect();
  ASSERT_DONE(client);
  bool is_its_gpu = false;
  for (uint32_t i = 0; i < client->hello().device_count; ++i) {
    is_its_gpu |= memcmp(&client->hello().devices[i].uuid, &waits_.gpu, sizeof(waits_.gpu)) == 0;
  }
  EXPECT_TRUE(is_its_gpu);
  // Too early: it waits again.
  ASSERT_DONE(watch_->Answer(waits_.number, true));
  const AgentWants::Allocation again = NextAllocation(*watch_);
  EXPECT_GT(again.number, waits_.number);
  EXPECT_EQ(again.attempts, 1u);
  MakeRoom();
  EXPECT_FALSE(target_.Speaks());
  ASSERT_DONE(watch_->Answer(again.number, true));
  ExpectAllocated();
  EXPECT_FALSE(Next(*watch_).allocation);
}

TEST_P(Room, AnAllocationFailsWhenTheWatchSaysSo) {
  ASSERT_DONE(watch_->Answer(waits_.number, false));
  const std::string answer = target_.Hear();
  EXPECT_TRUE(answer == "error 2" || answer.starts_with("FAILED")) << answer;
}

TEST_P(Room, AnAllocationFailsWhenTheWatchEnds) {
  watch_.reset();
  const std::string answer = target_.Hear();
  EXPECT_TRUE(answer == "error 2" || answer.starts_with("FAILED")) << answer;
}

TEST_P(Room, TheProgramIsSuspendedWhileAnAllocationWaits) {
  auto client = target_.Connect();
  ASSERT_DONE(client);
  const agent_client::Export taken = Suspend(*client);
  MakeRoom();
  ASSERT_DONE(watch_->Answer(waits_.number, true));
  for (int i = 0; !Next(*watch_).thread_at_gate && i < 3; ++i) {
  }
  EXPECT_FALSE(target_.Speaks()) << "its gate is closed";
  Resume(*client, taken);
  ExpectAllocated();
}

INSTANTIATE_TEST_SUITE_P(ways, Room, ::testing::Values("alloc", "pool-alloc", "vmm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// Without a watch, nothing changes.
TEST(RoomOnce, AnAllocationFailsAtOnceWithoutAWatch) {
  Target other({"direct"}), target({"direct"});
  Fill(other);
  EXPECT_EQ(target.Ask("alloc" + Bytes(kPiece)), "error 2");
  { WatchOf(target); }
  EXPECT_EQ(target.Ask("alloc" + Bytes(kPiece)), "error 2");
}

TEST(RoomOnce, MoreThanTheDeviceHasFailsAtOnce) {
  Target target({"direct"});
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  EXPECT_EQ(target.Ask("alloc" + Bytes(uint64_t{1} << 40)), "error 2");
}

// The daemon is killed: the kernel closes its sockets without a word.
TEST(RoomOnce, AnAllocationFailsWhenTheProcessOfTheWatchIsKilled) {
  Target other({"direct"}), target({"direct"});
  Fill(other);
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t daemon = fork();
  if (daemon == 0) {
    auto watch = agent_client::WatchesOfProcesses(kLong)->Connect(target.pid(), kLong);
    while (watch) {
      pollfd item{(*watch)->fd(), POLLIN, 0};
      poll(&item, 1, -1);
      const auto wants = (*watch)->Receive();
      if (wants && *wants && (write(told[1], (*wants)->allocation ? "w" : "-", 1) != 1)) break;
    }
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(told[0], &byte, 1), 1);
  target.Say("alloc" + Bytes(kPiece));
  while (byte != 'w' && read(told[0], &byte, 1) == 1) {
  }
  EXPECT_FALSE(target.Speaks());
  ASSERT_EQ(kill(daemon, SIGKILL), 0);
  EXPECT_EQ(target.Hear(), "error 2");
  waitpid(daemon, nullptr, 0);
  close(told[0]);
  close(told[1]);
}

// One thread of the program waits; another frees enough.
TEST(RoomOnce, AnAllocationSucceedsWhenItsOwnProgramFreesMemory) {
  Target target({"direct"});
  const std::string first = Fill(target);
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  ASSERT_EQ(target.Ask("beside-alloc" + Bytes(kPiece)), "ok");
  NextAllocation(*watch);
  EXPECT_EQ(target.Ask("free " + first), "0");
  const std::string second = target.Ask("beside-end");
  EXPECT_EQ(target.Ask("fill " + second + " 5"), "ok");
  EXPECT_FALSE(Next(*watch).allocation);
}

TEST(RoomOnce, TheProgramForksWhileAnAllocationWaits) {
  Target other({"direct"}), target({"direct"});
  const std::string held = Fill(other);
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  ASSERT_EQ(target.Ask("beside-alloc" + Bytes(kPiece)), "ok");
  const AgentWants::Allocation waits = NextAllocation(*watch);
  EXPECT_EQ(target.Ask("fork"), "0") << "the child has no descriptors of the agent";
  EXPECT_EQ(other.Ask("free " + held), "0");
  ASSERT_DONE(watch->Answer(waits.number, true));
  const std::string piece = target.Ask("beside-end");
  EXPECT_EQ(target.Ask("fill " + piece + " 5"), "ok");
}

// The program closes all descriptors that it finds, also the agent's.
TEST(RoomOnce, AnAllocationFailsWhenTheProgramClosesTheSocketOfTheWatch) {
  Target other({"direct"}), target({"direct"});
  Fill(other);
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  ASSERT_EQ(target.Ask("beside-alloc" + Bytes(kPiece)), "ok");
  NextAllocation(*watch);
  ASSERT_EQ(target.Ask("close-descriptors"), "ok");
  EXPECT_EQ(target.Ask("beside-end"), "error 2");
}

// The driver does not tell how much memory a context needs.
TEST(RoomOnce, AContextWaitsToo) {
  Target other({"direct"}), target({"direct"});
  const std::string held = Fill(other);
  FillUp(other, 2 * kMiB);
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  target.Say("other-context");
  const AgentWants::Allocation waits = NextAllocation(*watch);
  EXPECT_EQ(waits.bytes, 512 * kMiB);
  EXPECT_EQ(other.Ask("free " + held), "0");
  ASSERT_DONE(watch->Answer(waits.number, true));
  EXPECT_EQ(target.Hear(), "ok");
}

// A tiny allocation stays with the driver, and one from a slab needs a whole slab or a region.
TEST(RoomOnce, SmallAllocationsWaitToo) {
  Target other({"direct"}), target({"direct"});
  Fill(other);
  FillUp(other, 4096);
  auto watch = WatchOf(target);
  ASSERT_NE(watch, nullptr);
  for (uint64_t bytes : {8 * kMiB, 512 * 1024 * uint64_t{1}}) {
    target.Say("alloc" + Bytes(bytes));
    const AgentWants::Allocation waits = NextAllocation(*watch);
    EXPECT_EQ(waits.bytes, std::max(bytes, 2 * kMiB));
    ASSERT_DONE(watch->Answer(waits.number, false));
    EXPECT_EQ(target.Hear(), "error 2");
  }
}

}  // namespace
}  // namespace stasis::agent_test
