// Tables of the agent that cannot grow: the program's call fails as it does without memory, or the
// program is not suspended; nothing of it is lost.

#include "stand.h"

namespace stasis::agent_test {
namespace {

// The agent makes room for so many entries at first.
constexpr int kRoom = 8;

// Nobody would wait for the work in such a context.
TEST(NoRoom, AContextThatCannotBeNotedIsABlocker) {
  Target target({"direct"});
  for (int known = 1; known < kRoom; ++known) ASSERT_EQ(target.Ask("other-context"), "ok");
  ASSERT_EQ(target.Ask("without-room other-context"), "ok");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().blockers, uint32_t(wire::kBlockerUnseenThread));
  const Status closed = client->Close(kLong);
  ASSERT_FALSE(closed.has_value());
  EXPECT_NE(closed.error().ToString().find("no memory to note a context in"), std::string::npos)
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

// The driver has a piece all the same.
TEST(NoRoom, AnAllocationThatCannotBeNotedLeavesNoRegion) {
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
