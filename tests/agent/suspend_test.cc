// Complete suspends and resumes by every way of calling the driver, with another process as client.

#include "agent_protocol/packet.h"
#include "stand.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

// Allocations of every size class, each filled with different words.
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

class Lookups : public ::testing::TestWithParam<const char*> {};

TEST_P(Lookups, MemoryStaysAliveInTheReceiversDescriptors) {
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

TEST_P(Lookups, MemoryIsRestoredAfterACheckpoint) {
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
  // Restored memory can be freed and its space reused.
  for (const std::string& piece : pieces) EXPECT_EQ(target.Ask("free " + piece), "0");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().range_count, 0u);
  EXPECT_EQ(client->hello().kept_descriptors, 0u);
  EXPECT_EQ(client->hello().suspends, 3u);
  ExpectIntact(target, {});
}

INSTANTIATE_TEST_SUITE_P(Agent, Lookups, ::testing::Values("direct", "dlsym", "lookup", "cudart"),
                         [](const auto& info) { return std::string(info.param); });

// The program's own handles: kept, and released while mapped.
TEST(Suspend, SavesTheProgramsOwnHandles) {
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

// Memory with the properties that JAX's pool requests: file and fabric handles, accessible to other
// PCIe devices.
TEST(Suspend, SavesMemoryAsJaxRequestsIt) {
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

TEST(Suspend, SharedMemoryIsRejectedBeforeTheGateCloses) {
  Target plain({"direct"}, /*agent=*/false), target({"direct"});
  const std::string file = plain.Ask("handle-export " + plain.Ask("handle-make 2097152"));
  ASSERT_EQ(target.Ask("handle-import " + std::to_string(plain.pid().value) + " " + file), "0");
  auto client = target.Connect();
  ASSERT_DONE(client);
  auto closed = client->Close(kLong);
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, Code::kUnimplemented);
  EXPECT_NE(closed.error().message.find("shares GPU memory"), std::string::npos);
  EXPECT_NE(target.Ask("alloc 4096"), "");
}

TEST(Suspend, NothingToSaveIsNoError) {
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

// Sends the first batch of a map and returns the answer.
agent_protocol::Outcome MapFirstBatch(const UniqueFd& socket, const agent_client::Export& taken,
                                      const std::vector<UniqueFd>& fds) {
  agent_protocol::Ranges batch{};
  batch.total = uint32_t(taken.ranges.size());
  batch.count = agent_protocol::kMaxBatch;
  std::copy_n(taken.ranges.begin(), batch.count, batch.ranges);
  EXPECT_EQ(agent_protocol::Send(socket.get(), &batch, agent_protocol::Type::kMap, sizeof(batch),
                                 Numbers(fds).data(), batch.count, 20000),
            agent_protocol::Io::kOk);
  agent_protocol::Packet packet;
  int none[agent_protocol::kMaxBatch];
  uint32_t count = 0;
  EXPECT_EQ(agent_protocol::Receive(socket.get(), &packet, none, &count, 20000),
            agent_protocol::Io::kOk);
  return packet.reply.outcome;
}

// A retried resume allocates all memory again, so memory of the failed attempt must be freed: each
// attempt needs 600 MiB of 1 GiB.
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

  void ExpectNothingHeld(agent_client::AgentClient& client) {
    ASSERT_DONE(client.Status(kLong));
    EXPECT_EQ(client.hello().state, agent_protocol::State::kReleased);
    EXPECT_EQ(client.hello().kept_descriptors, 0u);
    EXPECT_EQ(client.hello().imported_ranges, 0u);
    EXPECT_EQ(FreeBytes(), free_);
  }

  void ExpectAResume(agent_client::AgentClient& client) {
    auto fds = PutBack(taken_, bytes_);
    ASSERT_DONE(client.Map(taken_.ranges, Numbers(fds), kLong));
    fds.clear();
    ASSERT_DONE(client.Open(kLong));
    EXPECT_EQ(target_.Ask("check " + pieces_ + " 9"), "right");
  }

  Target target_{{"direct"}};
  std::string pieces_;
  agent_client::Export taken_;
  std::vector<std::vector<char>> bytes_;
  size_t free_ = 0;
};

TEST_F(HalfAResume, IsDroppedWhenItsClientDisconnects) {
  {
    UniqueFd socket = ConnectSocket(target_);
    auto fds = PutBack(taken_, bytes_);
    ASSERT_EQ(MapFirstBatch(socket, taken_, fds), agent_protocol::Outcome::kOk);
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
    numbers[250] = STDIN_FILENO;  // not GPU memory
    auto mapped = client->Map(taken_.ranges, numbers, kLong);
    ASSERT_FALSE(mapped.has_value());
    EXPECT_EQ(mapped.error().code, Code::kUnavailable);
  }
  ExpectNothingHeld(*client);
  ExpectAResume(*client);
}

TEST_F(HalfAResume, IsDroppedWhenAnotherMapBegins) {
  UniqueFd socket = ConnectSocket(target_);
  auto fds = PutBack(taken_, bytes_);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(MapFirstBatch(socket, taken_, fds), agent_protocol::Outcome::kOk)
        << "round " << round;
  }
}

// Slabs need few handles and waste little.
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
  // A slab is freed only when all of it is unused, so freeing a random half frees nothing.
  RecordProperty("half_freed_range_bytes", std::to_string(client->hello().range_bytes));
}

}  // namespace
}  // namespace stasis::agent_test
