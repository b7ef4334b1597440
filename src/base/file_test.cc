#include "base/file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

namespace stasis {
namespace {

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    char name[] = "/tmp/stasis-file-test.XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~FileTest() override { (void)RemoveTree(folder_); }
  std::string folder_;
};

TEST_F(FileTest, RemoveTreeReportsEachEntryAndFollowsNoLink) {
  const std::string kept = folder_ + "/kept", tree = folder_ + "/tree";
  ASSERT_TRUE(MakeDirs(kept));
  ASSERT_TRUE(ReplaceFile(kept + "/file", "x"));
  ASSERT_TRUE(MakeDirs(tree + "/a/b"));
  ASSERT_TRUE(ReplaceFile(tree + "/a/b/file", "x"));
  ASSERT_EQ(::symlink(kept.c_str(), (tree + "/link").c_str()), 0);
  int removed = 0;
  auto status = RemoveTree(tree, [&] { ++removed; });
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(removed, 5);  // the file, b, a, the link, the tree
  EXPECT_FALSE(PathExists(tree));
  EXPECT_TRUE(PathExists(kept + "/file"));
  EXPECT_TRUE(RemoveTree(tree));
  EXPECT_TRUE(RemoveTree(kept + "/file"));
  EXPECT_FALSE(PathExists(kept + "/file"));
}

}  // namespace
}  // namespace stasis
