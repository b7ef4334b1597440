#include "base/task_limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/file.h"

namespace stasis {
namespace {

class TaskLimitsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(root_), nullptr); }
  void TearDown() override { EXPECT_TRUE(RemoveTree(root_)); }
  void Group(const std::string& path, const std::string& most, const std::string& now) {
    const std::string folder = root_ + path;
    ASSERT_TRUE(MakeDirs(folder));
    ASSERT_TRUE(ReplaceFile(folder + "/pids.max", most + "\n"));
    ASSERT_TRUE(ReplaceFile(folder + "/pids.current", now + "\n"));
  }
  std::string Describe(std::string_view groups) const { return DescribeTaskLimits(groups, root_); }

  char root_[40] = "/tmp/stasis-task-limits-test-XXXXXX";
};

TEST_F(TaskLimitsTest, TheInnermostLimitAndFullGroupsAboveItAreNamed) {
  Group("/a/b/c", "max", "3");
  Group("/a/b", "100", "40");
  Group("/a", "512", "512");
  const std::string text = Describe("0::/a/b/c\n");
  EXPECT_NE(text.find("100 for control group /a/b (pids.max; now 40)"), std::string::npos) << text;
  EXPECT_NE(text.find("512 for control group /a (pids.max; now 512)"), std::string::npos) << text;
  Group("/a", "512", "511");
  EXPECT_EQ(Describe("0::/a/b/c\n").find("512"), std::string::npos);
}

TEST_F(TaskLimitsTest, Version1HasASeparateHierarchy) {
  Group("/pids/x", "7", "7");
  const std::string text = Describe("9:memory:/x\n8:pids:/x\n");
  EXPECT_NE(text.find("7 for control group /x (pids.max; now 7)"), std::string::npos) << text;
}

TEST_F(TaskLimitsTest, OtherErrorsAreUnchanged) {
  const Error error = TaskError(ENOMEM, "fork");
  EXPECT_EQ(error.message.find("limits"), std::string::npos) << error.message;
  EXPECT_EQ(TaskError(EAGAIN, "fork").code, Code::kResourceExhausted);
}

}  // namespace
}  // namespace stasis
