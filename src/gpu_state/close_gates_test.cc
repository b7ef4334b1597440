#include "gpu_state/close_gates.h"

#include <gtest/gtest.h>

#include "gpu_state/agents.h"
#include "gpu_state/testing/world.h"

namespace stasis::gpu_state {
namespace {

using fakes::World;
using std::chrono::milliseconds;

constexpr auto kKeep = agent_client::AgentLink::Floor::kKeep;

struct Gates {
  explicit Gates(int count) : world(count) {
    for (int number = 1; number <= count; ++number) {
      world.program.AddAgent(number, 1);
      auto agent = FindAgent(*world.services.agents, world.program.At(number).id);
      EXPECT_TRUE(agent && *agent);
      links.push_back(std::move(*agent));
      owners.push_back({"process " + std::to_string(number), links.back().get()});
    }
  }
  agent_protocol::State StateOf(int number) { return world.program.At(number).agent->state; }

  World world;
  std::vector<std::unique_ptr<agent_client::AgentLink>> links;
  std::vector<GateOwner> owners;
};

TEST(CloseGatesTest, AloneEachGateIsClosedByItself) {
  Gates gates(2);
  ASSERT_TRUE(CloseGates(gates.owners, /*together=*/false, kKeep, Deadline()));
  EXPECT_EQ(gates.StateOf(1), agent_protocol::State::kClosed);
  EXPECT_EQ(gates.StateOf(2), agent_protocol::State::kClosed);
  EXPECT_EQ(gates.world.log.Count("agent 1 CloseInSteps"), 0);
}

TEST(CloseGatesTest, TogetherQuiescedProgramsAreSteppedUntilAllAre) {
  Gates gates(2);
  gates.world.program.At(2).agent->busy_rounds = 4;
  ASSERT_TRUE(CloseGates(gates.owners, /*together=*/true, kKeep, Deadline()));
  EXPECT_EQ(gates.StateOf(1), agent_protocol::State::kClosed);
  EXPECT_EQ(gates.StateOf(2), agent_protocol::State::kClosed);
  EXPECT_GE(gates.world.log.Count("agent 1 Rest 1"), 1);
  EXPECT_GE(gates.world.log.Count("agent 1 Rest 2"), 1) << "steps grow while it stays behind";
  EXPECT_GE(gates.world.log.Count("agent 2 Rest 0"), 3) << "the program behind gets no calls";
  EXPECT_EQ(gates.world.log.Count("agent 2 Rest 1"), 0);
}

TEST(CloseGatesTest, AProgramThatIsNeverQuiescedIsNamedAtTheDeadline) {
  Gates gates(2);
  gates.world.program.At(2).agent->busy_rounds = 1 << 30;
  Status closed =
      CloseGates(gates.owners, /*together=*/true, kKeep, Deadline::In(milliseconds(20)));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code, Code::kDeadlineExceeded);
  EXPECT_EQ(closed.error().message,
            "process 2: the program's work on the GPU did not end; all programs continue");
}

TEST(CloseGatesTest, AnAgentWithoutStepsClosesAllOfThemAlone) {
  Gates gates(2);
  gates.world.program.At(2).agent->steps = false;
  ASSERT_TRUE(CloseGates(gates.owners, /*together=*/true, kKeep, Deadline()));
  EXPECT_EQ(gates.world.log.Count("agent 1 CloseInSteps"), 0);
  EXPECT_EQ(gates.StateOf(1), agent_protocol::State::kClosed);
}

TEST(CloseGatesTest, AnErrorNamesItsProcess) {
  for (bool together : {false, true}) {
    Gates gates(2);
    gates.world.log.Set(together ? "agent 2 CloseInSteps" : "agent 2 Close keeping limits",
                        fakes::Fault::kFail);
    Status closed = CloseGates(gates.owners, together, kKeep, Deadline());
    ASSERT_FALSE(closed);
    EXPECT_NE(closed.error().ToString().find("process 2"), std::string::npos);
  }
}

}  // namespace
}  // namespace stasis::gpu_state
