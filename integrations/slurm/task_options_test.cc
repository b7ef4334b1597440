#include "slurm/task_options.h"

#include <gmock/gmock.h>

namespace stasis::slurm {
namespace {

Result<TaskOptions> WithPlace(const std::string& options, const std::string& place) {
  return ParseTaskOptions(
      {"--job", "slurm-7.0.3", "--options", options, "--member", place, "--", "x"});
}

TEST(TaskPlace, AllTasksOfAStepAreTogether) {
  auto options = WithPlace("keep=3,together", "1/8/2");
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_EQ(options->place.local, 1);
  EXPECT_EQ(options->place.count, 8);
  EXPECT_EQ(options->place.node, 2);
  EXPECT_TRUE(IsTogether(*options));
  options->script = true;
  EXPECT_FALSE(IsTogether(*options));
  // The step may have had other tasks on this node before it was requeued.
  EXPECT_TRUE(IsTogether(*WithPlace("together", "0/1/0")));
  EXPECT_FALSE(IsTogether(*WithPlace("multinode", "1/8/2")));
  // A plugin of an older version does not tell the place.
  EXPECT_FALSE(
      IsTogether(*ParseTaskOptions({"--job", "slurm-7.0.3", "--options", "together", "--", "x"})));
}

TEST(TaskPlace, WrongPlacesAreUsageErrors) {
  for (const char* place :
       {"", "1", "1/8", "1/8/", "8/8/0", "-1/8/0", "0/0/0", "1/8/0x", "1/99999/0"}) {
    EXPECT_FALSE(WithPlace("together", place)) << place;
  }
}

TEST(UserOptions, TcpIsGivenOnce) {
  EXPECT_TRUE(ParseUserOptions("tcp=keep,keep=3"));
  // The plugin would give the capability for the first, and the launcher use the last.
  EXPECT_FALSE(ParseUserOptions("tcp=keep,keep=3,tcp=close"));
}

}  // namespace
}  // namespace stasis::slurm
