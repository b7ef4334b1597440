// Queries about memory give the same answers with and without the agent.

#include <map>

#include "stand.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

TEST(Transparent, QueriesReportTheAllocationAndNotItsSlab) {
  Target target({"direct"});
  std::map<std::string, int> ids;
  for (int i = 0; i < 4; ++i) {
    std::string piece = target.Ask("alloc 3000000");
    EXPECT_EQ(target.Ask("range " + piece + " 1234"), "0 3000000");
    ++ids[target.Ask("buffer " + piece + " 5")];
    EXPECT_EQ(target.Ask("context " + piece), "primary");
    EXPECT_EQ(target.Ask("attributes " + piece + " 1234"), "same");
  }
  EXPECT_EQ(ids.size(), 4u) << "BUFFER_ID is unique";
}

TEST(Transparent, MemoryIsFreed) {
  UseGpu();  // this process's context takes memory too
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

TEST(Transparent, AnAllocationDuringACaptureFailsLikeWithoutAgent) {
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    ASSERT_EQ(target.Ask("capture"), "ok");
    EXPECT_EQ(target.Ask("alloc 33554432"),
              "error " + std::to_string(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    EXPECT_EQ(target.Ask("end-capture"), std::to_string(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    EXPECT_EQ(target.Ask("alloc 33554432"), "0");
  }
}

TEST(Transparent, ATooLargeAllocationIsOutOfMemory) {
  for (bool agent : {false, true}) {
    Target target({"direct"}, agent);
    EXPECT_EQ(target.Ask("alloc 2147483648"), "error 2");
    EXPECT_EQ(target.Ask("alloc 0"), "error 1");
    // A new slab does not fit any more, but the request itself does.
    EXPECT_EQ(target.Ask("alloc 1002438656"), "0");
    EXPECT_EQ(target.Ask("alloc 8388608"), "1");
  }
}

TEST(Transparent, MemoryThatStaysWithTheDriverIsCounted) {
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
