// The walk of a suspend and a resume, by every door, with another process at the other end.

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <map>

#include "stand.h"
#include "wire/find.h"
#include "wire/packet.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

constexpr uint64_t kMiB = 1 << 20;

// Allocations of every size class, each filled with words of its own.
std::vector<std::string> FillAll(Target& target) {
  std::vector<std::string> pieces;
  for (uint64_t bytes : {4096ul, 100000ul, 1 * kMiB, 3 * kMiB + 8, 2 * kMiB, 15 * kMiB, 16 * kMiB,
                         40 * kMiB, 5 * kMiB}) {
    pieces.push_back(target.Ask("alloc " + std::to_string(bytes)));
    EXPECT_EQ(target.Ask("fill " + pieces.back() + " " + std::to_string(1000 + pieces.size())),
              "ok");
  }
  return pieces;
}

void ExpectIntact(Target& target, const std::vector<std::string>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(target.Ask("check " + pieces[i] + " " + std::to_string(1001 + i)), "right")
        << "piece " << i;
  }
}

class Doors : public ::testing::TestWithParam<const char*> {};

TEST_P(Doors, MemoryStaysAliveInTheReceiversDescriptors) {
  Target target({GetParam()});
  std::vector<std::string> pieces = FillAll(target);
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_GE(client->hello().range_bytes, 82 * kMiB);
  EXPECT_EQ(client->hello().driver.tiny_bytes, 104096u);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  EXPECT_EQ(taken->ranges.size(), client->hello().range_count);
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
  taken->fds.clear();
  ASSERT_DONE(client->Open(kLong));
  ExpectIntact(target, pieces);
}

TEST_P(Doors, MemoryComesBackFromElsewhereThroughACheckpoint) {
  Target target({GetParam()});
  std::vector<std::string> pieces = FillAll(target);
  for (int round = 0; round < 3; ++round) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    size_t before = FreeBytes();
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    int pid = target.pid().value;
    CUcheckpointLockArgs lock{};
    lock.timeoutMs = 10000;
    ASSERT_EQ(cuCheckpointProcessLock(pid, &lock), CUDA_SUCCESS);
    ASSERT_EQ(cuCheckpointProcessCheckpoint(pid, nullptr), CUDA_SUCCESS);
    auto bytes = TakeAway(&*taken);
    EXPECT_GE(FreeBytes(), before + client->hello().range_bytes) << "the GPU is free";
    auto fds = PutBack(*taken, bytes);
    ASSERT_EQ(cuCheckpointProcessRestore(pid, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuCheckpointProcessUnlock(pid, nullptr), CUDA_SUCCESS);
    ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
    fds.clear();
    ASSERT_DONE(client->Open(kLong));
    ExpectIntact(target, pieces);
    EXPECT_EQ(FreeBytes(), before) << "nothing is left behind";
  }
  // Memory that has travelled can be freed, and its room used again.
  for (const std::string& piece : pieces) EXPECT_EQ(target.Ask("free " + piece), "0");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().range_count, 0u);
  EXPECT_EQ(client->hello().kept_descriptors, 0u);
  EXPECT_EQ(client->hello().suspends, 3u);
  ExpectIntact(target, {});
}

INSTANTIATE_TEST_SUITE_P(Agent, Doors, ::testing::Values("direct", "dlsym", "lookup", "cudart"),
                         [](const auto& info) { return std::string(info.param); });

// The program's own handles: kept, and released while mapped.
TEST(Suspend, CarriesTheProgramsOwnHandles) {
  Target target({"direct"});
  std::string kept = target.Ask("vmm 4194304 5");
  std::string released = target.Ask("vmm-released 2097152 3");
  target.Ask("fill " + kept + " 5");
  target.Ask("fill " + released + " 6");
  for (int round = 0; round < 2; ++round) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    EXPECT_EQ(client->hello().range_count, 8u);
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    auto bytes = TakeAway(&*taken);
    auto fds = PutBack(*taken, bytes);
    ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
    ASSERT_DONE(client->Open(kLong));
    EXPECT_EQ(target.Ask("check " + kept + " 5"), "right");
    EXPECT_EQ(target.Ask("check " + released + " 6"), "right");
  }
}

// As JAX's pool takes its memory: files and fabric handles, reachable for other PCIe devices.
TEST(Suspend, CarriesWhatJaxAsksFor) {
  setenv("SOFTGPU_FABRIC", "1", 1);
  Target target({"direct"});
  unsetenv("SOFTGPU_FABRIC");
  std::string piece = target.Ask("vmm-jax 20971520");
  target.Ask("fill " + piece + " 5");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().driver.program_vmm_bytes, 0u);
  for (int round = 0; round < 2; ++round) {
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_EQ(taken->ranges.size(), 1u);
    ASSERT_DONE(client->Release(kNot, kLong));
    auto bytes = TakeAway(&*taken);
    auto fds = PutBack(*taken, bytes);
    ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
    ASSERT_DONE(client->Open(kLong));
    EXPECT_EQ(target.Ask("check " + piece + " 5"), "right");
  }
}

TEST(Suspend, RefusesWhatIsSharedBeforeTheGateCloses) {
  Target target({"direct"});
  ASSERT_EQ(target.Ask("share"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto closed = client->Close(kLong);
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, Code::kUnimplemented);
  EXPECT_NE(closed.error().message.find("shares GPU memory"), std::string::npos);
  EXPECT_NE(target.Ask("alloc 4096"), "");
}

TEST(Suspend, NothingToCarryIsNoError) {
  Target target({"direct"});
  auto client = target.Connect();
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  EXPECT_TRUE(taken->ranges.empty());
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map({}, {}, kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST(Suspend, ManyRanges) {
  Target target({"direct"});
  std::string pieces = target.Ask("vmm 2097152 300");
  target.Ask("fill " + pieces + " 9");
  auto client = target.Connect();
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_EQ(taken->fds.size(), 300u);
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("check " + pieces + " 9"), "right");
}

// A client of its own making, for what AgentClient never sends.
UniqueFd Knock(Target& target) {
  auto header = wire::ReadAgentHeader(target.pid());
  UniqueFd process(int(syscall(SYS_pidfd_open, target.pid().value, 0)));
  UniqueFd door(int(syscall(438 /* pidfd_getfd */, process.get(), header->door_fd, 0)));
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  wire::SendDoorKnock(door.get(), ends[1]);
  close(ends[1]);
  return UniqueFd(ends[0]);
}

// The first batch of a map, with its answer.
wire::Outcome MapFirstBatch(const UniqueFd& socket, const wire::Export& taken,
                            const std::vector<UniqueFd>& fds) {
  wire::Ranges batch{};
  batch.total = uint32_t(taken.ranges.size());
  batch.count = wire::kMaxBatch;
  std::copy_n(taken.ranges.begin(), batch.count, batch.ranges);
  EXPECT_EQ(wire::Send(socket.get(), &batch, wire::Type::kMap, sizeof(batch), Numbers(fds).data(),
                       batch.count, 20000),
            wire::Io::kOk);
  wire::Packet packet;
  int none[wire::kMaxBatch];
  uint32_t count = 0;
  EXPECT_EQ(wire::Receive(socket.get(), &packet, none, &count, 20000), wire::Io::kOk);
  return packet.reply.outcome;
}

// Whoever tries a resume again makes all of the memory anew. What a try before it has brought must
// not take the room: of 1 GiB, 600 MiB are asked for each time.
class HalfAResume : public ::testing::Test {
 protected:
  void SetUp() override {
    UseGpu();
    pieces_ = target_.Ask("vmm 2097152 300");
    target_.Ask("fill " + pieces_ + " 9");
    auto client = target_.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    taken_ = std::move(*taken);
    ASSERT_DONE(client->Release(kUntilCommit, kLong));
    bytes_ = TakeAway(&taken_);
    ASSERT_DONE(client->Commit(kLong));
    free_ = FreeBytes();
  }

  void ExpectNothingHeld(wire::AgentClient& client) {
    ASSERT_DONE(client.Status(kLong));
    EXPECT_EQ(client.hello().state, wire::State::kReleased);
    EXPECT_EQ(client.hello().kept_descriptors, 0u);
    EXPECT_EQ(client.hello().imported_ranges, 0u);
    EXPECT_EQ(FreeBytes(), free_);
  }

  void ExpectAResume(wire::AgentClient& client) {
    auto fds = PutBack(taken_, bytes_);
    ASSERT_DONE(client.Map(taken_.ranges, Numbers(fds), kLong));
    fds.clear();
    ASSERT_DONE(client.Open(kLong));
    EXPECT_EQ(target_.Ask("check " + pieces_ + " 9"), "right");
  }

  Target target_{{"direct"}};
  std::string pieces_;
  wire::Export taken_;
  std::vector<std::vector<char>> bytes_;
  size_t free_ = 0;
};

TEST_F(HalfAResume, IsDroppedWhenItsClientIsGone) {
  {
    UniqueFd socket = Knock(target_);
    auto fds = PutBack(taken_, bytes_);
    ASSERT_EQ(MapFirstBatch(socket, taken_, fds), wire::Outcome::kOk);
  }
  auto client = target_.Connect();
  ASSERT_DONE(client);
  ExpectNothingHeld(*client);
  ExpectAResume(*client);
}

TEST_F(HalfAResume, IsDroppedWhenARangeCannotBeMapped) {
  auto client = target_.Connect();
  ASSERT_DONE(client);
  {
    auto fds = PutBack(taken_, bytes_);
    std::vector<int> numbers = Numbers(fds);
    numbers[250] = STDIN_FILENO;  // no memory of a GPU
    auto mapped = client->Map(taken_.ranges, numbers, kLong);
    ASSERT_FALSE(mapped.has_value());
    EXPECT_EQ(mapped.error().code, Code::kUnavailable);
  }
  ExpectNothingHeld(*client);
  ExpectAResume(*client);
}

TEST_F(HalfAResume, IsDroppedWhenAnotherBegins) {
  UniqueFd socket = Knock(target_);
  auto fds = PutBack(taken_, bytes_);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(MapFirstBatch(socket, taken_, fds), wire::Outcome::kOk) << "round " << round;
  }
}

// Slabs: few handles, little waste.
TEST(Suspend, TenThousandAllocations) {
  Target target({"direct"});
  ASSERT_EQ(target.Ask("many 10000 65536"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_LE(client->hello().range_count, 25u);
  const uint64_t asked = 10000ull * 65536;
  const uint64_t had = client->hello().range_bytes + client->hello().driver.tiny_bytes;
  EXPECT_LE(had, asked + 64 * kMiB);
  ASSERT_EQ(target.Ask("free-every 2"), "ok");
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("check-many"), "right");
  ASSERT_DONE(client->Status(kLong));
  // A slab goes back only when the last of it is free: half of them freed at random gives nothing.
  RecordProperty("half_freed_range_bytes", std::to_string(client->hello().range_bytes));
}

// Closed gate: a call waits, a look at the table does not; and then it goes on.
TEST(Gate, HoldsACallUpAndLetsItGo) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 4194304");
  target.Ask("fill " + piece + " 3");
  auto client = target.Connect();
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  EXPECT_EQ(target.Ask("range " + piece + " 77"), "0 4194304");
  target.Say("check " + piece + " 3");
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Hear(), "right");
}

TEST(Gate, ReopensAtTheDeadlineWhenWorkDoesNotEnd) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 4194304");
  ASSERT_EQ(target.Ask("stuck"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  for (int i = 0; i < 2; ++i) {
    auto closed = client->Close(milliseconds(200));
    ASSERT_FALSE(closed.has_value());
    EXPECT_EQ(closed.error().code, Code::kDeadlineExceeded);
    EXPECT_EQ(target.Ask("fill " + piece + " 3"), "ok") << "the program runs on";
  }
  ASSERT_EQ(target.Ask("unstuck"), "ok");
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST(Gate, DoesNotCloseOverACapture) {
  Target target({"direct"});
  ASSERT_EQ(target.Ask("capture"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto closed = client->Close(milliseconds(200));
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, Code::kDeadlineExceeded);
  EXPECT_EQ(target.Ask("end-capture"), "0");
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST(Gate, SixteenThreadsThroughTwentySuspends) {
  Target target({"direct"});
  ASSERT_EQ(target.Ask("hammer 16"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  uint64_t before = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    uint64_t still = std::stoull(target.Ask("rounds"));
    auto bytes = TakeAway(&*taken);
    auto fds = PutBack(*taken, bytes);
    EXPECT_EQ(std::stoull(target.Ask("rounds")), still) << "nobody passes a closed gate";
    EXPECT_GE(still, before);
    before = still;
    ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
    ASSERT_DONE(client->Open(kLong));
  }
  EXPECT_EQ(target.Ask("calm"), "wrong 0");
}

// Quick suspends without another process, so that threads meet the gate at many moments.
TEST(Gate, SixtyFourThreadsThroughTwoHundredSuspends) {
  Target target({"dlsym"});
  ASSERT_EQ(target.Ask("hammer 64"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  for (int round = 0; round < 200; ++round) {
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
    ASSERT_DONE(client->Open(kLong));
  }
  EXPECT_EQ(target.Ask("calm"), "wrong 0");
}

// ---- clients that die, and what comes through the door

TEST(Client, ItsEndBeforeReleaseReopens) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  for (int step = 0; step < 3; ++step) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    if (step >= 1) ASSERT_DONE(client->Close(kLong));
    if (step >= 2) ASSERT_DONE(client->ExportAll(kLong));
    client = Fail(Code::kCancelled, "dead");
    EXPECT_EQ(target.Ask("check " + piece + " 4"), "right") << step;
  }
}

TEST(Client, ItsEndAfterReleaseLeavesTheGateClosedForTheNext) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  std::string second = target.Ask("vmm 2097152 300");
  target.Ask("fill " + second + " 5");
  wire::Export kept;
  {
    auto client = target.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    kept = std::move(*taken);
  }
  target.Say("check " + piece + " 4");
  {
    auto client = target.Connect();
    ASSERT_DONE(client);
    EXPECT_EQ(client->hello().state, wire::State::kReleased);
    EXPECT_FALSE(client->Open(kLong).has_value()) << "there is nothing to open to";
    EXPECT_FALSE(client->Close(kLong).has_value());
    // Dies in the middle: one batch of two.
    std::vector<wire::Range> wrong = kept.ranges;
    wrong[250].address += 1;
    EXPECT_FALSE(client->Map(wrong, Numbers(kept.fds), kLong).has_value());
  }
  {
    auto client = target.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Map(kept.ranges, Numbers(kept.fds), kLong));
    // Its end after the map is an open.
  }
  EXPECT_EQ(target.Hear(), "right");
  EXPECT_EQ(target.Ask("check " + second + " 5"), "right");
}

// The coordinator and the mover die with the memory in their hands.
TEST(Client, ItsEndBeforeCommitGivesEverythingBack) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  std::string second = target.Ask("vmm-released 2097152 30");
  target.Ask("fill " + second + " 5");
  for (int round = 0; round < 3; ++round) {
    {
      auto client = target.Connect();
      ASSERT_DONE(client);
      ASSERT_DONE(client->Close(kLong));
      ASSERT_DONE(client->ExportAll(kLong));
      ASSERT_DONE(client->Release(kUntilCommit, kLong));
    }
    EXPECT_EQ(target.Ask("check " + piece + " 4"), "right") << round;
    EXPECT_EQ(target.Ask("check " + second + " 5"), "right") << round;
  }
  // Also when the driver has checkpointed the rest in the meantime.
  {
    auto client = target.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Close(kLong));
    ASSERT_DONE(client->ExportAll(kLong));
    ASSERT_DONE(client->Release(kUntilCommit, kLong));
    UseGpu();
    CUcheckpointLockArgs lock{};
    lock.timeoutMs = 10000;
    ASSERT_EQ(cuCheckpointProcessLock(target.pid().value, &lock), CUDA_SUCCESS);
    ASSERT_EQ(cuCheckpointProcessCheckpoint(target.pid().value, nullptr), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuCheckpointProcessRestore(target.pid().value, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCheckpointProcessUnlock(target.pid().value, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(target.Ask("check " + piece + " 4"), "right");
}

TEST(Client, CommitLetsTheMemoryGo) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->Commit(kLong).error().code, Code::kFailedPrecondition);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(client->Release(kUntilCommit, kLong));
  auto bytes = TakeAway(&*taken);
  size_t held = FreeBytes();
  ASSERT_DONE(client->Commit(kLong));
  EXPECT_GE(FreeBytes(), held + 20 * kMiB);
  auto fds = PutBack(*taken, bytes);
  ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("check " + piece + " 4"), "right");
}

TEST(Client, OnlyOneAtATime) {
  Target target({"direct"});
  auto first = target.Connect();
  ASSERT_DONE(first);
  auto second = target.Connect();
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kAborted);
  first = Fail(Code::kCancelled, "gone");
  // The agent sees the end of the first when it looks again: a new client may come a moment early.
  auto third = target.Connect();
  for (int i = 0; i < 100 && !third && third.error().code == Code::kAborted; ++i) {
    third = target.Connect();
  }
  ASSERT_DONE(third);
}

TEST(Client, WrongOrderIsRefusedAndChangesNothing) {
  Target target({"direct"});
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->Release(kNot, kLong).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(client->Open(kLong).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(client->ExportAll(kLong).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(client->Map({}, {}, kLong).error().code, Code::kFailedPrecondition);
  ASSERT_DONE(client->Close(kLong));
  EXPECT_EQ(client->Close(kLong).error().code, Code::kFailedPrecondition);
  ASSERT_DONE(client->Open(kLong));
}

TEST(Door, ComesBackWhenTheProgramClosesEverything) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  ASSERT_EQ(target.Ask("close-descriptors"), "ok");
  // The agent notices by itself; nobody can say when.
  auto client = target.Connect();
  for (int i = 0; i < 200 && !client; ++i) {
    client = target.Connect();
    usleep(10000);
  }
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST(Door, AForkedChildHasNone) {
  Target target({"direct"});
  target.Ask("alloc 20971520");
  auto client = target.Connect();
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("fork"), "0");
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST(Door, NoneWithoutAgentOrBeforeTheGpuIsUsed) {
  Target plain({"direct"}, false);
  auto none = plain.Connect();
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, Code::kNotFound);
  Target cat({}, true, "/bin/cat");
  EXPECT_EQ(cat.Ask("hello"), "hello");
  auto idle = cat.Connect();
  ASSERT_FALSE(idle.has_value());
  EXPECT_EQ(idle.error().code, Code::kNotFound);
}

// Whoever may trace the program may send anything; the program does not notice.
TEST(Door, RubbishIsThrownAway) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  auto header = wire::ReadAgentHeader(target.pid());
  ASSERT_DONE(header);
  UniqueFd process(int(syscall(SYS_pidfd_open, target.pid().value, 0)));
  UniqueFd door(int(syscall(438, process.get(), header->door_fd, 0)));
  ASSERT_TRUE(door.valid());
  std::string garbage(5000, 'x');
  EXPECT_GT(send(door.get(), garbage.data(), garbage.size(), 0), 0);
  EXPECT_GT(send(door.get(), "\1", 1, 0), 0) << "a knock without a socket";
  EXPECT_EQ(wire::SendDoorKnock(door.get(), door.get()), wire::Io::kOk) << "the door itself";
  int stream[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream), 0);
  EXPECT_EQ(wire::SendDoorKnock(door.get(), stream[0]), wire::Io::kOk) << "not a socket of packets";
  EXPECT_EQ(wire::SendDoorKnock(door.get(), process.get()), wire::Io::kOk) << "not a socket";
  wire::CloseAll(stream, 2);
  EXPECT_EQ(target.Ask("check " + piece + " 4"), "right");
}

TEST(Door, RubbishFromAClientEndsItsConnection) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  auto knock = [&] { return Knock(target); };
  auto ends_after = [&](UniqueFd& socket) {
    wire::Packet packet;
    int fds[wire::kMaxBatch];
    uint32_t count = 0;
    wire::Io io = wire::Io::kOk;
    while (io == wire::Io::kOk) io = wire::Receive(socket.get(), &packet, fds, &count, 20000);
    return io;
  };
  {
    UniqueFd socket = knock();
    std::string garbage(70000, 'x');
    EXPECT_GT(send(socket.get(), garbage.data(), garbage.size(), 0), 0);
    EXPECT_EQ(ends_after(socket), wire::Io::kEnd);
  }
  {
    // A well-formed answer where a request belongs, with the gate closed by the request before.
    UniqueFd socket = knock();
    wire::CloseRequest close{};
    close.timeout_ms = 10000;
    wire::Send(socket.get(), &close, wire::Type::kClose, sizeof(close), nullptr, 0, 1000);
    wire::Reply reply{};
    wire::Send(socket.get(), &reply, wire::Type::kReply, sizeof(reply), nullptr, 0, 1000);
    EXPECT_EQ(ends_after(socket), wire::Io::kEnd);
    EXPECT_EQ(target.Ask("check " + piece + " 4"), "right") << "the gate is open again";
  }
  {
    // Counts that do not fit what came.
    UniqueFd socket = knock();
    wire::Ranges ranges{};
    ranges.count = 150;
    ranges.total = 150;
    wire::Send(socket.get(), &ranges, wire::Type::kMap, sizeof(ranges), nullptr, 0, 1000);
    EXPECT_EQ(ends_after(socket), wire::Io::kEnd);
  }
  auto client = target.Connect();
  ASSERT_DONE(client);
}

// ---- what a program can ask

TEST(Transparent, AllocationsAnswerForThemselvesAndNotForTheirSlab) {
  Target target({"direct"});
  std::map<std::string, int> ids;
  for (int i = 0; i < 4; ++i) {
    std::string piece = target.Ask("alloc 3000000");
    EXPECT_EQ(target.Ask("range " + piece + " 1234"), "0 3000000");
    ++ids[target.Ask("buffer " + piece + " 5")];
    EXPECT_EQ(target.Ask("context " + piece), "primary");
  }
  EXPECT_EQ(ids.size(), 4u) << "BUFFER_ID is unique";
}

TEST(Transparent, MemoryIsGivenBack) {
  UseGpu();  // our own context takes memory too
  Target target({"direct"});
  uint64_t before = std::stoull(target.Ask("memory"));
  std::string a = target.Ask("alloc 3000000"), b = target.Ask("alloc 33554432");
  EXPECT_LE(before - std::stoull(target.Ask("memory")), 40 * kMiB) << "a slab's rest is free";
  size_t outside = FreeBytes();
  EXPECT_EQ(target.Ask("free " + a), "0");
  EXPECT_EQ(target.Ask("free " + b), "0");
  EXPECT_EQ(std::stoull(target.Ask("memory")), before);
  EXPECT_EQ(FreeBytes(), outside + 64 * kMiB);
  EXPECT_EQ(target.Ask("free " + a), "1") << "twice is INVALID_VALUE, as ever";
  target.Ask("alloc 33554432");
  EXPECT_EQ(target.Ask("scratch-context 50331648"), "ok");
  EXPECT_EQ(std::stoull(target.Ask("memory")), before - 32 * kMiB) << "a context's end";
  EXPECT_EQ(target.Ask("reset"), "ok");
  EXPECT_GE(std::stoull(target.Ask("memory")), before) << "a reset";
}

TEST(Transparent, AnAllocationDuringACaptureFailsAsItDoesWithout) {
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    ASSERT_EQ(target.Ask("capture"), "ok");
    EXPECT_EQ(target.Ask("alloc 33554432"),
              "error " + std::to_string(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    EXPECT_EQ(target.Ask("end-capture"), std::to_string(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    EXPECT_EQ(target.Ask("alloc 33554432"), "0");
  }
}

TEST(Transparent, MoreThanThereIsIsOutOfMemory) {
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    EXPECT_EQ(target.Ask("alloc 2147483648"), "error 2");
    EXPECT_EQ(target.Ask("alloc 0"), "error 1");
    // A slab does not fit any more, the request does.
    EXPECT_EQ(target.Ask("alloc 1002438656"), "0");
    EXPECT_EQ(target.Ask("alloc 8388608"), "1");
  }
}

TEST(Transparent, WhatStaysWithTheDriverIsCounted) {
  Target target({"direct"});
  target.Ask("alloc 4096");
  ASSERT_EQ(target.Ask("pool-own 67108864"), "ok") << "a pool with a bound";
  ASSERT_EQ(target.Ask("pool-alloc 1048576 0"), "1");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().driver.tiny_bytes, 4096u);
  EXPECT_EQ(client->hello().driver.pool_bytes, 1048576u);
  EXPECT_EQ(target.Ask("pool-free 1 0"), "0");
  ASSERT_DONE(client->Status(kLong));
  EXPECT_EQ(client->hello().driver.pool_bytes, 0u);
}

}  // namespace
}  // namespace stasis::agent_test
