// Memory restored by the agent, converted to the program's own memory for a checkpoint by the
// driver alone.

#include "agent_client/find.h"
#include "stand.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

class Own : public ::testing::Test {
 protected:
  void SetUp() override {
    UseGpu();
    pieces_ = {target_.Ask("alloc 41943040"), target_.Ask("alloc 3145736"),
               target_.Ask("vmm 4194304 5"), target_.Ask("vmm-released 2097152 3")};
    for (size_t i = 0; i < pieces_.size(); ++i) {
      target_.Ask("fill " + pieces_[i] + " " + std::to_string(10 + i));
    }
    EXPECT_EQ(Memory(), 0u);
    auto client = target_.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    EXPECT_EQ(Memory(), agent_protocol::kMemoryAway);
    auto bytes = TakeAway(&*taken);
    auto fds = PutBack(*taken, bytes);
    ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
    fds.clear();
    ASSERT_DONE(client->Open(kLong));
    EXPECT_EQ(Memory(), agent_protocol::kMemoryImported);
    free_ = FreeBytes();
  }

  uint32_t Memory() {
    auto header = agent_client::ReadAgentHeader(target_.pid());
    return header ? header->memory & ~uint32_t{agent_protocol::kSupported} : ~0u;
  }

  void ExpectIntact() {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      EXPECT_EQ(target_.Ask("check " + pieces_[i] + " " + std::to_string(10 + i)), "right") << i;
    }
  }

  CUresult ThroughTheDriver() {
    const int pid = target_.pid().value;
    CUcheckpointLockArgs lock{};
    lock.timeoutMs = 10000;
    if (CUresult r = cuCheckpointProcessLock(pid, &lock); r != CUDA_SUCCESS) return r;
    if (CUresult r = cuCheckpointProcessCheckpoint(pid, nullptr); r != CUDA_SUCCESS) return r;
    if (CUresult r = cuCheckpointProcessRestore(pid, nullptr); r != CUDA_SUCCESS) return r;
    return cuCheckpointProcessUnlock(pid, nullptr);
  }

  Target target_{{"direct"}};
  std::vector<std::string> pieces_;
  size_t free_ = 0;
};

TEST_F(Own, TheDriverAloneCanSaveIt) {
  {
    auto client = target_.Connect();
    ASSERT_DONE(client);
    EXPECT_GT(client->hello().imported_ranges, 8u);
    ASSERT_FALSE(client->Own(kLong)) << "the program is at work";
    ASSERT_DONE(client->Close(kLong));
    ASSERT_DONE(client->Own(kLong));
    ASSERT_DONE(client->Open(kLong));
    ASSERT_DONE(client->Status(kLong));
    EXPECT_EQ(client->hello().imported_ranges, 0u);
    EXPECT_EQ(client->hello().kept_descriptors, 0u);
  }
  EXPECT_EQ(Memory(), 0u);
  EXPECT_EQ(FreeBytes(), free_) << "nothing is held twice";
  ExpectIntact();
  EXPECT_EQ(ThroughTheDriver(), CUDA_SUCCESS);
  ExpectIntact();
  // The agent can save the memory as before.
  auto client = target_.Connect();
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  ExpectIntact();
}

TEST_F(Own, ImportsAreLostByTheDriver) { EXPECT_NE(ThroughTheDriver(), CUDA_SUCCESS); }

TEST_F(Own, WithoutRoomNothingChanges) {
  auto client = target_.Connect();
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  {
    Fault full(target_, "cuMemCreate:3=fail(2)");
    auto none = client->Own(kLong);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().raw, CUDA_ERROR_OUT_OF_MEMORY) << none.error().ToString();
  }
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(Memory() & agent_protocol::kMemoryImported, agent_protocol::kMemoryImported);
  ExpectIntact();
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Own(kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(FreeBytes(), free_);
  ExpectIntact();
}

// The imports are unmapped, and the driver fails to map their replacements. The agent keeps the
// memory and restores it when its client disconnects.
TEST_F(Own, UnmappedMemoryIsRestoredLater) {
  {
    auto client = target_.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Close(kLong));
    // The two views are mapped; the two imports are not.
    {
      Fault fault(target_, "cuMemMap:3=fail(999),cuMemMap:4=fail(999)");
      ASSERT_FALSE(client->Own(kLong));
    }
    ASSERT_DONE(client->Status(kLong));
    EXPECT_EQ(client->hello().state, agent_protocol::State::kReleased);
    EXPECT_NE(Memory() & agent_protocol::kMemoryAway, 0u);
  }
  ExpectIntact();
  auto client = target_.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().state, agent_protocol::State::kOpen);
  EXPECT_EQ(Memory(), agent_protocol::kMemoryImported);
}

}  // namespace
}  // namespace stasis::agent_test
