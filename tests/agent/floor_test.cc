// Stack limits, which are reduced while the driver checkpoints the rest.

#include <unistd.h>

#include "stand.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

// Allocates the rest of the GPU's memory.
struct Hog {
  Hog() {
    UseGpu();
    for (size_t bytes = 512 * kMiB; bytes >= kMiB; bytes /= 2) {
      CUdeviceptr piece = 0;
      while (cuMemAlloc_v2(&piece, bytes) == CUDA_SUCCESS) pieces.push_back(piece);
    }
  }
  ~Hog() { Free(); }
  void Free() {
    for (CUdeviceptr piece : pieces) EXPECT_EQ(cuMemFree_v2(piece), CUDA_SUCCESS);
    pieces.clear();
  }
  std::vector<CUdeviceptr> pieces;
};

void Suspend(agent_client::AgentClient& client, agent_client::Export* taken,
             agent_client::AgentClient::Hold hold,
             agent_client::AgentClient::Floor floor = agent_client::AgentClient::Floor::kLower) {
  ASSERT_DONE(client.Close(kLong, floor));
  auto exported = client.ExportAll(kLong);
  ASSERT_DONE(exported);
  *taken = std::move(*exported);
  ASSERT_DONE(client.Release(hold, kLong));
}

TEST(Floor, IsLoweredAtReleaseAndBackAtOpen) {
  UseGpu();
  Target target({"direct"});
  ASSERT_EQ(target.Ask("limit"), "1024");
  const size_t before = FreeBytes();
  for (bool lower : {true, false, true}) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Close(kLong, lower ? agent_client::AgentClient::Floor::kLower : kKeep));
    EXPECT_EQ(FreeBytes(), before) << "not before the release: an undo would have to wait for it";
    ASSERT_DONE(client->ExportAll(kLong));
    ASSERT_DONE(client->Release(kNot, kLong));
    target.Say("limit");
    ASSERT_DONE(client->Status(kLong));
    const uint64_t floor = client->hello().devices[0].floor_bytes;
    EXPECT_EQ(FreeBytes(), before + floor);
    if (lower) {
      EXPECT_GE(floor, 7 * kMiB) << "half of a context";
    } else {
      EXPECT_EQ(floor, 0u);
    }
    ASSERT_DONE(client->Map({}, {}, kLong));
    EXPECT_FALSE(target.Speaks()) << "it waits at the gate";
    ASSERT_DONE(client->Open(kLong));
    EXPECT_EQ(FreeBytes(), before);
    EXPECT_EQ(target.Hear(), "1024") << "the program sees its own";
    ASSERT_DONE(client->Status(kLong));
    EXPECT_EQ(client->hello().devices[0].floor_bytes, 0u);
  }
}

TEST(Floor, TheProgramsOwnLimitComesBackThroughACheckpoint) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  ASSERT_EQ(target.Ask("set-limit 4096"), "0");
  const size_t before = FreeBytes();
  auto client = target.Connect();
  ASSERT_DONE(client);
  agent_client::Export taken;
  Suspend(*client, &taken, kNot);
  const int pid = target.pid().value;
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = 10000;
  ASSERT_EQ(cuCheckpointProcessLock(pid, &lock), CUDA_SUCCESS);
  ASSERT_EQ(cuCheckpointProcessCheckpoint(pid, nullptr), CUDA_SUCCESS);
  auto bytes = TakeAway(&taken);
  auto fds = PutBack(taken, bytes);
  ASSERT_EQ(cuCheckpointProcessRestore(pid, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCheckpointProcessUnlock(pid, nullptr), CUDA_SUCCESS);
  ASSERT_DONE(client->Map(taken.ranges, Numbers(fds), kLong));
  fds.clear();
  target.Say("set-limit 2048");  // blocks at the gate
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Hear(), "0");
  EXPECT_EQ(target.Ask("limit"), "2048");
  EXPECT_EQ(target.Ask("set-limit 4096"), "0");
  EXPECT_EQ(FreeBytes(), before);
  EXPECT_EQ(target.Ask("check " + piece + " 4"), "right");
}

// The limit is restored by a roll-back and after a client's death.
TEST(Floor, IsRestoredWheneverTheProgramContinues) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  const size_t before = FreeBytes();
  for (bool dies_before_map : {true, false}) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    agent_client::Export taken;
    Suspend(*client, &taken, kUntilCommit);
    EXPECT_GE(FreeBytes(), before + 7 * kMiB);
    if (!dies_before_map) ASSERT_DONE(client->Map(taken.ranges, Numbers(taken.fds), kLong));
    taken.fds.clear();
    client = Fail(Code::kCancelled, "dead");
    EXPECT_EQ(target.Ask("check " + piece + " 4"), "right");
    EXPECT_EQ(FreeBytes(), before);
    EXPECT_EQ(target.Ask("limit"), "1024");
  }
}

TEST(Floor, AContextThatKeepsItsLimitIsNoError) {
  Target target({"direct"});
  const size_t before = FreeBytes();
  Fault fault(target, "cuCtxSetLimit=fail(801)");
  auto client = target.Connect();
  ASSERT_DONE(client);
  agent_client::Export taken;
  Suspend(*client, &taken, kNot);
  EXPECT_EQ(FreeBytes(), before);
  ASSERT_DONE(client->Map({}, {}, kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("limit"), "1024");
}

// Resuming with a stack that is too small would be worse than waiting.
TEST(Floor, WithoutMemoryTheGateStaysClosedAndTheClientIsTold) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  for (bool dies : {false, true}) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    agent_client::Export taken;
    Suspend(*client, &taken, kNot);
    Hog hog;
    target.Say("check " + piece + " 4");
    ASSERT_DONE(client->Map(taken.ranges, Numbers(taken.fds), kLong));
    taken.fds.clear();
    auto opened = client->Open(kLong);
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, Code::kUnavailable);
    EXPECT_EQ(opened.error().raw, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_NE(opened.error().message.find("stack limit"), std::string::npos);
    ASSERT_DONE(client->Status(kLong));
    EXPECT_EQ(client->hello().state, agent_protocol::State::kMapped);
    if (dies) {
      client = Fail(Code::kCancelled, "dead");
      hog.Free();
    } else {
      hog.Free();
      ASSERT_DONE(client->Open(kLong));
    }
    EXPECT_EQ(target.Hear(), "right");
    EXPECT_EQ(target.Ask("limit"), "1024");
  }
}

}  // namespace
}  // namespace stasis::agent_test
