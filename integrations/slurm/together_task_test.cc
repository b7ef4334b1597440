#include "slurm/together_task.h"

#include <gmock/gmock.h>

namespace stasis::slurm {
namespace {

using ::testing::HasSubstr;

TEST(TogetherTask, TheCommonJobIsNamedAfterStepAndNode) {
  EXPECT_EQ(NodeJobName("slurm-7.0.3", 1), "slurm-7.0.n1");
}

TEST(TogetherTask, ARequeuedStepMustHaveTheSameTasks) {
  const std::vector<std::string> two = {"slurm-7.0.2", "slurm-7.0.3"};
  EXPECT_TRUE(CheckSameTasks("slurm-7.0.n1", {}, two));
  EXPECT_TRUE(CheckSameTasks("slurm-7.0.n1", two, two));
  EXPECT_FALSE(CheckSameTasks("slurm-7.0.n1", two, {"slurm-7.0.3", "slurm-7.0.2"}));
  const Status fewer = CheckSameTasks("slurm-7.0.n1", two, {"slurm-7.0.1"});
  ASSERT_FALSE(fewer);
  EXPECT_THAT(fewer.error().message, HasSubstr("1 from slurm-7.0.1 on, not 2 from slurm-7.0.2 on"));
}

TEST(TogetherTask, TheLeaderEndsWithItsOwnCodeIfAllHaveEnded) {
  EXPECT_EQ(LeaderCode(3, {0, 3}), 0);
  EXPECT_EQ(LeaderCode(3, {4, 3}), 4);
  EXPECT_EQ(LeaderCode(75, {0, std::nullopt}), 75);
  EXPECT_EQ(LeaderCode(75, {std::nullopt, 3}), 75);
  EXPECT_EQ(LeaderCode(1, {}), 1);
}

}  // namespace
}  // namespace stasis::slurm
