#include "objects/folder_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"

namespace stasis::objects {
namespace {

class FolderStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "folder-store-XXXXXX";
    ASSERT_NE(::mkdtemp(path_.data()), nullptr);
    auto store = FolderStore::Open(path_);
    ASSERT_TRUE(store) << store.error().ToString();
    store_ = std::move(*store);
  }
  void TearDown() override { (void)RemoveTree(path_); }
  Status Put(const std::string& key, std::string_view text) { return store_->Put(key, {&text, 1}); }
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path_ + "/" + name).parent_path());
    std::ofstream(path_ + "/" + name) << text;
  }

  std::string path_;
  std::unique_ptr<FolderStore> store_;
};

TEST_F(FolderStoreTest, NeedsItsFolder) {
  const auto store = FolderStore::Open(path_ + "/absent");
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::kNotFound);
  EXPECT_THAT(store.error().hint, ::testing::HasSubstr("mount"));
}

TEST_F(FolderStoreTest, WritesFilesThatOnlyTheOwnerReads) {
  ASSERT_TRUE(Put("a/b", "data"));
  struct stat st;
  ASSERT_EQ(::stat((path_ + "/a/b").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777u, 0600u);
  ASSERT_EQ(::stat((path_ + "/a").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777u, 0700u);
}

TEST_F(FolderStoreTest, FollowsNoLink) {
  Write("../folder-store-outside", "secret");
  const std::string outside = path_ + "/../folder-store-outside";
  ASSERT_EQ(::symlink(outside.c_str(), (path_ + "/link").c_str()), 0);
  ASSERT_EQ(::symlink("..", (path_ + "/up").c_str()), 0);
  EXPECT_EQ(store_->GetWhole("link", 100).error().code, Code::kDataLoss);
  EXPECT_FALSE(store_->GetWhole("up/folder-store-outside", 100));
  EXPECT_FALSE(Put("up/x", "data"));
  EXPECT_FALSE(PathExists(path_ + "/../x"));
  // The keys of links are listed: otherwise a gc could conclude that no such objects exist.
  EXPECT_EQ(store_->List("", "", 10)->objects.size(), 2u);
  // A link is replaced, not written through.
  EXPECT_TRUE(Put("link", "data"));
  EXPECT_EQ(*ReadFile(outside), "secret");
  (void)RemoveFile(outside);
}

TEST_F(FolderStoreTest, DoesNotBlockOnAFifo) {
  ASSERT_EQ(::mkfifo((path_ + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(store_->GetWhole("fifo", 100).error().code, Code::kDataLoss);
}

TEST_F(FolderStoreTest, IgnoresForeignFiles) {
  Write("has space", "x");
  Write("dir/~backup", "x");
  Write("dir/.nfs0123", "x");
  Write("dir/ours", "x");
  const auto page = store_->List("", "", 10);
  ASSERT_TRUE(page);
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, "dir/ours");
}

TEST_F(FolderStoreTest, RemovesOldLeftoversOnly) {
  Write("~incoming/old", "half an object");
  Write("~incoming/new", "another");
  const timespec times[2] = {{0, UTIME_OMIT}, {1'000'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (path_ + "/~incoming/old").c_str(), times, 0), 0);
  EXPECT_TRUE(store_->List("", "", 10)->objects.empty());
  EXPECT_EQ(*store_->RemoveLeftovers(std::chrono::hours(24)), 1u);
  EXPECT_FALSE(PathExists(path_ + "/~incoming/old"));
  EXPECT_TRUE(PathExists(path_ + "/~incoming/new"));
}

TEST_F(FolderStoreTest, LeavesNothingAfterAFailure) {
  ASSERT_TRUE(Put("a/b", "data"));
  EXPECT_EQ(Put("a", "data").error().code, Code::kFailedPrecondition);
  EXPECT_EQ(Put("a/b/c", "data").error().code, Code::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::is_empty(path_ + "/~incoming"));
  EXPECT_EQ(*store_->GetWhole("a/b", 10), "data");
}

}  // namespace
}  // namespace stasis::objects
