#include "checks/look_ahead.h"

#include <gtest/gtest.h>

#include "gpu_state/testing/world.h"

namespace stasis::checks {
namespace {

using fakes::World;

Outlook LookAheadOf(World& world) {
  auto survey = SurveyTarget(world.services, {"target", "", world.program.root()});
  EXPECT_TRUE(survey) << survey.error().ToString();
  auto outlook = LookAhead(world.services, *survey);
  EXPECT_TRUE(outlook) << outlook.error().ToString();
  return *outlook;
}

TEST(LookAheadTest, SplitsTheMemoryBetweenMoversAndDriver) {
  World world(2);
  world.program.AddAgent(1, 3);
  const Outlook outlook = LookAheadOf(world);
  EXPECT_TRUE(outlook.refusals.empty());
  EXPECT_EQ(outlook.carried_bytes, 3 * fakes::kPiece);
  EXPECT_EQ(outlook.driver_bytes, 2 * (64u << 20) - 3 * fakes::kPiece);
  ASSERT_EQ(outlook.left_to_driver.size(), 1u);
  EXPECT_TRUE(outlook.sharing);
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

TEST(LookAheadTest, NamesEveryRefusalAndNotOnlyTheFirst) {
  World world(2);
  for (int number : {1, 2}) world.program.AddAgent(number, 1).managed_bytes = 5u << 20;
  const Outlook outlook = LookAheadOf(world);
  ASSERT_EQ(outlook.refusals.size(), 2u);
  EXPECT_NE(outlook.refusals[1].ToString().find("5 MiB of managed memory"), std::string::npos);
}

TEST(LookAheadTest, ProcessesWithoutAgentsMayShareMemory) {
  World world(2);
  const Outlook outlook = LookAheadOf(world);
  ASSERT_FALSE(outlook.sharing);
  EXPECT_EQ(outlook.sharing.error().code, Code::kUnimplemented);
}

TEST(LookAheadTest, IpcPeersMustTakePart) {
  World world(1);
  agent_protocol::IpcPeer peer{};
  peer.name = fakes::IpcName(9);
  peer.role = agent_protocol::kIpcOwnsTheirs;
  world.program.AddAgent(1, 1).peers = {peer};
  const Outlook outlook = LookAheadOf(world);
  ASSERT_EQ(outlook.refusals.size(), 1u);
  EXPECT_NE(outlook.refusals[0].message.find("does not take part"), std::string::npos);
}

}  // namespace
}  // namespace stasis::checks
