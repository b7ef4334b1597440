// The agent's tables cannot grow: the program's call fails for lack of memory, or the program
// cannot be suspended. No memory is lost.

#include "stand.h"

namespace stasis::agent_test {
namespace {

// The initial capacity of the agent's tables.
constexpr int kRoom = 8;

// A suspend would not wait for the work in such a context.
TEST(NoRoom, AContextThatCannotBeRecordedIsABlocker) {
  Target target({"direct"});
  for (int known = 1; known < kRoom; ++known) ASSERT_EQ(target.Ask("other-context"), "ok");
  ASSERT_EQ(target.Ask("without-room other-context"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().blockers, uint32_t(agent_protocol::kBlockerUnseenThread));
  const Status closed = client->Close(kLong);
  ASSERT_FALSE(closed.has_value());
  EXPECT_NE(closed.error().ToString().find("no memory to record a context"), std::string::npos)
      << closed.error().ToString();
}

TEST(NoRoom, ACaptureThatCannotBeCountedDoesNotBegin) {
  Target target({"direct"});
  EXPECT_EQ(target.Ask("without-room try-capture"), "2") << "CUDA_ERROR_OUT_OF_MEMORY";
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().open_captures, 0u);
  EXPECT_EQ(target.Ask("sync 0"), "0") << "the stream is not captured";
  EXPECT_EQ(target.Ask("try-capture"), "0");
  EXPECT_EQ(target.Ask("end-capture"), "0");
}

// The driver itself still finds memory.
TEST(NoRoom, AnAllocationThatCannotBeRecordedLeavesNoRegion) {
  Target target({"direct"});
  target.Ask("alloc 41943040");
  const std::string piece = target.Ask("without-room alloc 41943040");
  EXPECT_EQ(target.Ask("fill " + piece + " 3"), "ok");
  EXPECT_EQ(target.Ask("check " + piece + " 3"), "right");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().range_count, 1u);
  EXPECT_EQ(client->hello().blockers, 0u);
}

}  // namespace
}  // namespace stasis::agent_test
