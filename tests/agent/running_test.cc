// A client copies memory of a program that continues to run.

#include <optional>

#include "stand.h"

namespace stasis::agent_test {
namespace {

std::string AllocateAndFill(Target& target, size_t bytes, int seed) {
  std::string piece = target.Ask("alloc " + std::to_string(bytes));
  EXPECT_EQ(target.Ask("fill " + piece + " " + std::to_string(seed)), "ok");
  return piece;
}

TEST(Running, ExportsAllMemoryInTheOrderOfASuspend) {
  UseGpu();
  Target target({"direct"});
  // More ranges than fit into one packet.
  for (int i = 0; i < 230; ++i) target.Ask("vmm 2097152 1");
  AllocateAndFill(target, 40 << 20, 7);
  auto client = target.Connect();
  ASSERT_DONE(client);
  ASSERT_TRUE(client->exports_running());
  auto running = client->ExportRunning(kLong);
  ASSERT_DONE(running);
  EXPECT_EQ(running->fds.size(), running->ranges.size());
  EXPECT_EQ(running->ranges.size(), client->hello().range_count);
  // The program continues to use its memory meanwhile.
  const std::string piece = AllocateAndFill(target, 3 << 20, 8);
  EXPECT_EQ(target.Ask("check " + piece + " 8"), "right");
  running->fds.clear();
  ASSERT_DONE(client->Close(kLong));
  ASSERT_FALSE(client->ExportRunning(kLong)) << "its gate is closed";
  auto all = client->ExportAll(kLong);
  ASSERT_DONE(all);
  for (size_t i = 0, at = 0; i < running->ranges.size(); ++i, ++at) {
    while (at < all->ranges.size() && all->ranges[at].address != running->ranges[i].address) ++at;
    ASSERT_LT(at, all->ranges.size()) << "range " << i;
  }
}

// The program frees memory and allocates as much again. The descriptors keep the freed memory, so
// the allocation must wait for their end.
class Waiting : public ::testing::Test {
 protected:
  void SetUp() override {
    UseGpu();
    const size_t half = (FreeBytes() * 6 / 10) >> 21 << 21;
    const std::string first = target_.Ask("alloc " + std::to_string(half));
    auto client = target_.Connect();
    ASSERT_DONE(client);
    client_.emplace(std::move(*client));
    auto running = client_->ExportRunning(kLong);
    ASSERT_DONE(running);
    held_ = std::move(running->fds);
    EXPECT_EQ(target_.Ask("free " + first), "0");
    target_.Say("alloc " + std::to_string(half));
    EXPECT_FALSE(target_.Speaks()) << target_.Hear();
  }

  Target target_{{"direct"}};
  std::optional<agent_client::AgentClient> client_;
  std::vector<UniqueFd> held_;
};

TEST_F(Waiting, EndsWithTheCopy) {
  held_.clear();
  ASSERT_DONE(client_->Status(kLong));
  const std::string second = target_.Hear();
  ASSERT_DONE(client_->Status(kLong));
  EXPECT_EQ(client_->hello().driver.plain_bytes, 0u) << "the driver had to allocate it";
  EXPECT_EQ(target_.Ask("free " + second), "0");
}

// When a client is killed, its socket can close before its descriptors.
TEST_F(Waiting, EndsWithTheMemoryOfAKilledClient) {
  client_.reset();
  EXPECT_FALSE(target_.Speaks()) << target_.Hear();
  held_.clear();
  EXPECT_EQ(target_.Ask("free " + target_.Hear()), "0");
}

}  // namespace
}  // namespace stasis::agent_test
