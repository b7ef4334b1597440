// Closing several gates together, with work that does not end.

#include "gpu_state/close_gates.h"

#include "stand.h"

namespace stasis::agent_test {
namespace {

using gpu_state::CloseGates;
using gpu_state::GateOwner;

struct Two {
  Target first{{"direct"}}, second{{"direct"}};
  Result<agent_client::AgentClient> one = first.Connect(), other = second.Connect();
  std::vector<GateOwner> owners() { return {{"the first", &*one}, {"the second", &*other}}; }
};

TEST(CloseGates, QuiescedProgramsAreClosed) {
  Two two;
  ASSERT_DONE(two.one);
  ASSERT_DONE(two.other);
  for (bool together : {false, true}) {
    ASSERT_DONE(CloseGates(two.owners(), together, kKeep, Deadline::In(kLong)));
    for (const GateOwner& owner : two.owners()) {
      auto status = owner.agent->Status(kLong);
      ASSERT_DONE(status);
      EXPECT_EQ(status->state, agent_protocol::State::kClosed);
      ASSERT_DONE(owner.agent->Open(kLong));
    }
  }
}

// The error names the program with endless work. Meanwhile the other program proceeds call by call,
// which takes a while on a busy machine.
TEST(CloseGates, AProgramWithEndlessWorkIsNamed) {
  Two two;
  ASSERT_DONE(two.one);
  ASSERT_DONE(two.other);
  ASSERT_EQ(two.second.Ask("stuck"), "ok");
  const std::string piece = two.first.Ask("alloc 4194304");
  ASSERT_EQ(two.first.Ask("fill " + piece + " 3"), "ok");
  two.first.Say("check " + piece + " 3");
  auto closed = CloseGates(two.owners(), /*together=*/true, kKeep, Deadline::In(seconds(25)));
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(closed.error().code, Code::kDeadlineExceeded);
  EXPECT_NE(closed.error().message.find("the second: the program's work on the GPU did not end"),
            std::string::npos)
      << closed.error().ToString();
  EXPECT_EQ(two.first.Hear(), "right");
  for (const GateOwner& owner : two.owners()) ASSERT_DONE(owner.agent->Open(kLong));
  ASSERT_EQ(two.second.Ask("unstuck"), "ok");
  EXPECT_EQ(two.first.Ask("check " + piece + " 3"), "right");
}

}  // namespace
}  // namespace stasis::agent_test
