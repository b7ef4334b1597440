// Stream-ordered memory: saved by the agent, and with the same behaviour as with the plain driver.

#include <unistd.h>

#include "stand.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

const std::string kThreshold = "4 ", kReserved = "5", kUsed = "7", kUsedHigh = "8";

// A thread of the agent frees memory after an unspecified time.
bool Becomes(Target& target, const std::string& question, const std::string& answer) {
  for (int i = 0; i < 6000; ++i) {
    if (target.Ask(question) == answer) return true;
    usleep(10000);
  }
  return false;
}

bool FreeBecomes(size_t bytes) {
  for (int i = 0; i < 6000 && FreeBytes() != bytes; ++i) usleep(10000);
  return FreeBytes() == bytes;
}

class PoolLookups : public ::testing::TestWithParam<const char*> {};

TEST_P(PoolLookups, ContentsSurviveACheckpoint) {
  UseGpu();
  Target target({GetParam()});
  const size_t outside = FreeBytes();
  std::vector<std::string> pieces;
  for (uint64_t bytes : {4096ul, 1 * kMiB, 3 * kMiB + 8, 20 * kMiB, 40 * kMiB, 100000ul}) {
    pieces.push_back(target.Ask("pool-alloc " + std::to_string(bytes) + " " +
                                std::to_string(pieces.size() % 3)));
    EXPECT_EQ(target.Ask("fill " + pieces.back() + " " + std::to_string(pieces.size())), "ok");
  }
  // Freed in stream order, without a synchronisation.
  std::string gone = target.Ask("pool-alloc 50331648 0");
  EXPECT_EQ(target.Ask("pool-free " + gone + " 0"), "0");
  for (int round = 0; round < 2; ++round) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    EXPECT_EQ(client->hello().driver.pool_bytes, 0u);
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    uint64_t bytes = 0;
    for (const agent_protocol::Range& range : taken->ranges) bytes += range.size_bytes;
    EXPECT_GE(bytes, 64 * kMiB);
    EXPECT_LE(bytes, (32 + 20 + 40) * kMiB) << "what is free does not travel";
    ASSERT_DONE(client->Release(kNot, kLong));
    const int pid = target.pid().value;
    CUcheckpointLockArgs lock{};
    lock.timeoutMs = 10000;
    ASSERT_EQ(cuCheckpointProcessLock(pid, &lock), CUDA_SUCCESS);
    ASSERT_EQ(cuCheckpointProcessCheckpoint(pid, nullptr), CUDA_SUCCESS);
    auto contents = TakeAway(&*taken);
    auto fds = PutBack(*taken, contents);
    ASSERT_EQ(cuCheckpointProcessRestore(pid, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cuCheckpointProcessUnlock(pid, nullptr), CUDA_SUCCESS);
    ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
    fds.clear();
    ASSERT_DONE(client->Open(kLong));
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(target.Ask("check " + pieces[i] + " " + std::to_string(i + 1)), "right") << i;
    }
  }
  for (const std::string& piece : pieces) EXPECT_EQ(target.Ask("pool-free " + piece + " 0"), "0");
  EXPECT_EQ(target.Ask("sync 0"), "0");
  EXPECT_TRUE(FreeBecomes(outside)) << outside << " " << FreeBytes();
}

INSTANTIATE_TEST_SUITE_P(Agent, PoolLookups,
                         ::testing::Values("direct", "dlsym", "lookup", "cudart"),
                         [](const auto& info) { return std::string(info.param); });

// Unfinished work in one stream still uses memory that was freed there.
TEST(Pools, AnotherStreamDoesNotGetMemoryInUse) {
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    std::string first = target.Ask("pool-alloc 4194304 0");
    ASSERT_EQ(target.Ask("stuck"), "ok");
    EXPECT_EQ(target.Ask("pool-set " + first + " 0"), "0");
    EXPECT_EQ(target.Ask("pool-free " + first + " 0"), "0");
    std::string second = target.Ask("pool-alloc 4194304 1");
    EXPECT_EQ(target.Ask("pool-set " + second + " 1"), "0");
    EXPECT_EQ(target.Ask("sync 1"), "0");
    EXPECT_NE(target.Ask("address " + first), target.Ask("address " + second));
    EXPECT_EQ(target.Ask("unstuck"), "ok");
    EXPECT_EQ(target.Ask("pool-is " + second + " 2"), "right") << agent;
  }
}

// The same stream can reuse freed memory at once, because of the stream's order.
TEST(Pools, TheSameStreamReusesItsFreedMemory) {
  Target target({"direct"});
  std::string first = target.Ask("pool-alloc 20971520 0");
  ASSERT_EQ(target.Ask("stuck"), "ok");
  target.Ask("pool-set " + first + " 0");
  EXPECT_EQ(target.Ask("pool-free " + first + " 0"), "0");
  std::string second = target.Ask("pool-alloc 18874368 0");
  EXPECT_EQ(target.Ask("address " + second), target.Ask("address " + first));
  // Other streams must still wait for the rest of the freed memory.
  std::string third = target.Ask("pool-alloc 2097152 1");
  EXPECT_EQ(target.Ask("pool-set " + third + " 1"), "0");
  EXPECT_EQ(target.Ask("sync 1"), "0");
  EXPECT_EQ(target.Ask("unstuck"), "ok");
  EXPECT_EQ(target.Ask("pool-is " + second + " 1"), "right");
  EXPECT_EQ(target.Ask("pool-is " + third + " 2"), "right");
}

// The same dialogue with and without the agent must give the same answers.
TEST(Pools, AnswerLikeThePlainDriver) {
  std::vector<std::string> dialogue = {
      "pool-get 1",
      "pool-get 2",
      "pool-get 3",
      "pool-get 4",
      "pool-get 5",
      "pool-get 6",
      "pool-get 7",
      "pool-get 8",
      "pool-get 9",
      "pool-alloc 1000 0",
      "pool-alloc 3000000 1",
      "pool-alloc 50331648 2",
      "pool-get 7",
      "pool-get 8",
      "pool-pointer 0 0",
      "pool-pointer 1 2999999",
      "pool-pointer 2 77",
      "range 1 4711",
      "pool-alloc 0 0",
      "pool-alloc 2147483648 0",
      "pool-alloc 18446744073709551615 0",
      "pool-free 1 0",
      "pool-free 1 0",
      "pool-get 7",
      "pool-get 8",
      "pool-put 8 1",
      "pool-put 8 0",
      "pool-get 8",
      "pool-put 7 0",
      "pool-put 5 0",
      "pool-put 2 0",
      "pool-get 2",
      "pool-put 4 1073741824",
      "pool-get 4",
      "pool-put 4 0",
      "pool-access-of 0",
      "pool-access 0 3",
      "pool-access 0 0",
      "pool-access 7 3",
      "free 0",
      "free 0",
      "pool-get 7",
      "ipc-get 2",
      "sync-context",
      "pool-trim 0",
      "pool-free 2 2",
      "sync-context",
      "pool-trim 0",
      "pool-get 5",
      "pool-get 7",
      "pool-destroy",
      "pool-own 0",
      "pool-get 4",
      "pool-get 7",
      "pool-alloc 4096 0",
      "pool-get 7",
      "pool-pointer 3 4095",
      "pool-destroy",
      "pool-pointer 2 0",
  };
  dialogue.pop_back();
  std::vector<std::string> answers[2];
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    for (const std::string& line : dialogue) answers[agent].push_back(target.Ask(line));
    EXPECT_EQ(target.Ask("pool-alloc 4096 0"), "4") << "the default pool is the current one again";
    EXPECT_EQ(target.Ask("pool-free 3 0"), "0") << "of a pool that was destroyed";
  }
  for (size_t i = 0; i < dialogue.size(); ++i) {
    EXPECT_EQ(answers[true][i], answers[false][i]) << dialogue[i];
  }
}

TEST(Pools, KeepMemoryUpToTheirThresholdUntilTrimmed) {
  for (bool agent : {false, true}) {
    UseGpu();
    Target target({"direct"}, agent);
    const size_t outside = FreeBytes();
    EXPECT_EQ(target.Ask("pool-put " + kThreshold + "1073741824"), "1073741824");
    std::string a = target.Ask("pool-alloc 41943040 0"), b = target.Ask("pool-alloc 20971520 0");
    EXPECT_EQ(target.Ask("pool-free " + a + " 0"), "0");
    EXPECT_EQ(target.Ask("pool-free " + b + " 0"), "0");
    EXPECT_EQ(target.Ask("sync 0"), "0");
    EXPECT_EQ(target.Ask("pool-get " + kUsed), "0");
    EXPECT_EQ(target.Ask("pool-get " + kReserved), "62914560");
    EXPECT_EQ(FreeBytes(), outside - 60 * kMiB);
    EXPECT_EQ(target.Ask("pool-trim 41943040"), "0");
    EXPECT_LE(std::stoull(target.Ask("pool-get " + kReserved)), 40 * kMiB);
    EXPECT_EQ(target.Ask("pool-trim 0"), "0");
    EXPECT_EQ(target.Ask("pool-get " + kReserved), "0");
    EXPECT_EQ(FreeBytes(), outside);
    // Without a threshold any synchronisation frees unused memory.
    EXPECT_EQ(target.Ask("pool-put " + kThreshold + "0"), "0");
    for (const char* wait : {"sync 1", "sync-context"}) {
      std::string c = target.Ask("pool-alloc 41943040 1");
      EXPECT_EQ(target.Ask("pool-free " + c + " 1"), "0");
      EXPECT_EQ(target.Ask(wait), "0");
      EXPECT_TRUE(FreeBecomes(outside)) << wait;
      EXPECT_TRUE(Becomes(target, "pool-get " + kReserved, "0"));
    }
  }
}

TEST(Pools, AnAllocationWaitsForPendingFrees) {
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    std::string first = target.Ask("pool-alloc 629145600 0");
    ASSERT_EQ(target.Ask("slow 300"), "ok");
    target.Ask("pool-set " + first + " 0");
    EXPECT_EQ(target.Ask("pool-free " + first + " 0"), "0");
    std::string second = target.Ask("pool-alloc 734003200 1");
    ASSERT_EQ(second, "1") << "agent " << agent;
    target.Ask("pool-set " + second + " 1");
    EXPECT_EQ(target.Ask("sync 1"), "0");
    EXPECT_EQ(target.Ask("pool-is " + second + " 2"), "right");
    EXPECT_EQ(target.Ask("pool-alloc 734003200 0"), "error 2");
  }
}

// If the memory fits, only the stream waits.
TEST(Pools, AStreamWaitsForAnotherWhenThereIsNoOtherMemory) {
  Target target({"direct"});
  std::string first = target.Ask("pool-alloc 629145600 0");
  ASSERT_EQ(target.Ask("stuck"), "ok");
  target.Ask("pool-set " + first + " 0");
  EXPECT_EQ(target.Ask("pool-free " + first + " 0"), "0");
  std::string second = target.Ask("pool-alloc 524288000 1");
  EXPECT_EQ(target.Ask("address " + second), target.Ask("address " + first));
  EXPECT_EQ(target.Ask("pool-set " + second + " 1"), "0");
  EXPECT_EQ(target.Ask("unstuck"), "ok");
  EXPECT_EQ(target.Ask("sync 1"), "0");
  EXPECT_EQ(target.Ask("pool-is " + second + " 2"), "right");
}

TEST(Pools, PlainAllocationsGetUnusedPoolMemory) {
  Target target({"direct"});
  target.Ask("pool-put " + kThreshold + "1073741824");
  std::string first = target.Ask("pool-alloc 629145600 0");
  EXPECT_EQ(target.Ask("pool-free " + first + " 0"), "0");
  EXPECT_EQ(target.Ask("alloc 734003200"), "1");
}

TEST(Pools, UnusedMemoryIsNotSaved) {
  Target target({"direct"});
  target.Ask("pool-put " + kThreshold + "1073741824");
  std::string a = target.Ask("pool-alloc 209715200 0"), b = target.Ask("pool-alloc 20971520 0");
  target.Ask("fill " + b + " 3");
  EXPECT_EQ(target.Ask("pool-free " + a + " 0"), "0");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_GE(client->hello().range_bytes, 220 * kMiB);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_EQ(taken->ranges.size(), 1u);
  EXPECT_EQ(taken->ranges[0].size_bytes, 20 * kMiB);
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("check " + b + " 3"), "right");
}

// Memory outlives its pool.
TEST(Pools, ADestroyedPoolKeepsItsAllocations) {
  UseGpu();
  Target target({"direct"});
  const size_t outside = FreeBytes();
  target.Ask("pool-own 0");
  target.Ask("pool-put " + kThreshold + "1073741824");
  std::string a = target.Ask("pool-alloc 41943040 0"), b = target.Ask("pool-alloc 20971520 0");
  target.Ask("fill " + b + " 3");
  EXPECT_EQ(target.Ask("pool-free " + a + " 0"), "0");
  EXPECT_EQ(target.Ask("sync 0"), "0");
  EXPECT_EQ(target.Ask("pool-destroy"), "0");
  EXPECT_EQ(FreeBytes(), outside - 20 * kMiB);
  EXPECT_EQ(target.Ask("check " + b + " 3"), "right");
  EXPECT_EQ(target.Ask("pool-free " + b + " 0"), "0");
  EXPECT_EQ(target.Ask("sync 0"), "0");
  EXPECT_TRUE(FreeBecomes(outside));
}

TEST(Pools, TheDriverServesCaptures) {
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    std::string before = target.Ask("pool-alloc 4194304 0");
    ASSERT_EQ(target.Ask("capture"), "ok");
    EXPECT_EQ(target.Ask("pool-alloc 4194304 0"),
              "error " + std::to_string(CUDA_ERROR_NOT_SUPPORTED));
    EXPECT_EQ(target.Ask("pool-free " + before + " 0"), "1") << "is no memory of the graph";
    std::string other = target.Ask("pool-alloc 4194304 1");
    EXPECT_EQ(other, "1") << "another stream continues";
    if (agent) {
      auto client = target.Connect();
      ASSERT_DONE(client);
      EXPECT_EQ(client->hello().driver.pool_bytes, 0u) << "and is carried";
    }
    EXPECT_EQ(target.Ask("pool-set " + other + " 1"), "0");
    EXPECT_EQ(target.Ask("pool-free " + before + " 1"), "0");
    EXPECT_EQ(target.Ask("end-capture"), "0");
    EXPECT_EQ(target.Ask("sync 1"), "0");
    EXPECT_EQ(target.Ask("pool-is " + other + " 2"), "right");
    EXPECT_EQ(target.Ask("pool-free " + other + " 1"), "0");
    EXPECT_EQ(target.Ask("sync 1"), "0");
    EXPECT_EQ(target.Ask("pool-get " + kUsed), "0");
  }
}

TEST(Pools, AResetFreesThem) {
  UseGpu();
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    const size_t before = FreeBytes();
    target.Ask("pool-alloc 41943040 0");
    target.Ask("pool-alloc 4194304 2");
    EXPECT_EQ(target.Ask("pool-free 1 2"), "0");
    EXPECT_EQ(target.Ask("reset"), "ok");
    EXPECT_TRUE(FreeBecomes(before)) << agent;
    EXPECT_EQ(target.Ask("pool-alloc 41943040 2"), "0");
    EXPECT_EQ(target.Ask("fill 0 3"), "ok");
    EXPECT_EQ(target.Ask("check 0 3"), "right");
  }
}

TEST(Pools, SixtyFourThreadsThroughAHundredSuspends) {
  Target target({"direct"});
  ASSERT_EQ(target.Ask("hammer-pool 64"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  for (int round = 0; round < 100; ++round) {
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    if (round % 20 == 0) {
      auto bytes = TakeAway(&*taken);
      taken->fds = PutBack(*taken, bytes);
    }
    ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
    ASSERT_DONE(client->Open(kLong));
  }
  EXPECT_EQ(target.Ask("calm"), "wrong 0");
  EXPECT_GT(std::stoull(target.Ask("rounds")), 100u);
  EXPECT_EQ(target.Ask("pool-get " + kUsed), "0");
  ASSERT_DONE(client->Status(kLong));
  EXPECT_EQ(client->hello().driver.pool_bytes, 0u);
}

// If the driver fails a free half-way, the event is returned.
TEST(Pools, AFailedFreeReturnsItsEvent) {
  Target target({"direct"});
  for (const char* piece : {"0", "1", "2"}) ASSERT_EQ(target.Ask("pool-alloc 1048576 0"), piece);
  ASSERT_EQ(target.Ask("pool-free 0 0"), "0");
  ASSERT_EQ(target.Ask("sync 0"), "0");
  ASSERT_EQ(target.Ask("pool-trim 0"), "0");  // the event can be reused
  ASSERT_EQ(target.Ask("other-context"), "ok");
  {
    Fault fault(target, "cuCtxPushCurrent_v2=fail");
    ASSERT_EQ(target.Ask("pool-free 1 0"), "0") << "it waits for the stream instead";
  }
  // If no event can be reused, this free has to create one or wait, and both fail.
  Fault fault(target, "cuEventCreate=fail,cuStreamSynchronize=fail");
  EXPECT_EQ(target.Ask("pool-free 2 0"), "0");
}

}  // namespace
}  // namespace stasis::agent_test
