#include "config/open_paths.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

namespace stasis::config {
namespace {

using ::testing::HasSubstr;

class OpenPathsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/open-paths-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    settings_.state_dir = folder_ + "/state";
    settings_.run_dir = folder_ + "/run-%u";
    run_ = folder_ + "/run-" + std::to_string(::geteuid());
  }
  void TearDown() override { ASSERT_TRUE(RemoveTree(folder_)); }

  std::string folder_, run_;
  Settings settings_;
};

TEST_F(OpenPathsTest, JournalsMayBeApartFromTheState) {
  const auto paths = OpenPaths(settings_);
  ASSERT_TRUE(paths) << paths.error().ToString();
  EXPECT_EQ(paths->run, run_);
  EXPECT_EQ(paths->data, folder_ + "/state/data");
  EXPECT_TRUE(PathExists(run_ + "/journal"));
  EXPECT_FALSE(PathExists(folder_ + "/state/run"));
  EXPECT_EQ(DaemonSocket(settings_).value_or(""), run_ + "/stasisd.sock");
}

TEST_F(OpenPathsTest, JournalsAreNotWrittenToAFolderOfOthers) {
  ASSERT_TRUE(MakeDirs(run_));
  ASSERT_EQ(::chmod(run_.c_str(), 0777), 0);
  const auto writable = OpenPaths(settings_);
  ASSERT_FALSE(writable);
  EXPECT_EQ(writable.error().code, Code::kPermissionDenied);
  EXPECT_THAT(writable.error().ToString(), HasSubstr(run_ + " is not a folder of this user alone"));
  ASSERT_TRUE(RemoveTree(run_));
  ASSERT_TRUE(MakeDirs(folder_ + "/elsewhere"));
  ASSERT_EQ(::symlink("elsewhere", run_.c_str()), 0);
  EXPECT_FALSE(OpenPaths(settings_));
  EXPECT_FALSE(PathExists(folder_ + "/elsewhere/journal")) << "written behind the link";
}

TEST_F(OpenPathsTest, TheOwnerOfAFolderIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make another user's folder";
  ASSERT_TRUE(MakeDirs(run_));
  ASSERT_EQ(::chown(run_.c_str(), 4002, 4002), 0);
  const auto refused = OpenPaths(settings_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kPermissionDenied);
  EXPECT_THAT(refused.error().message, HasSubstr(run_ + " belongs to user 4002"));
  EXPECT_THAT(refused.error().hint, HasSubstr("STASIS_RUN_DIR"));
  EXPECT_FALSE(PathExists(run_ + "/journal")) << "written to another user's folder";
}

}  // namespace
}  // namespace stasis::config
