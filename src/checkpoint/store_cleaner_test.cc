#include "checkpoint/store_cleaner.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "store/image_testing.h"
#include "store/store_folder.h"

namespace stasis::checkpoint {
namespace {

using store::testing::TempStore;

class StoreCleanerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    writer_ = store::testing::MustBegin(store_.path(), "a");
    auto cleaner = StoreCleaner::Start(*writer_, store_.path());
    ASSERT_TRUE(cleaner) << cleaner.error().ToString();
    cleaner_ = std::move(*cleaner);
    store::testing::PretendCriuDump(*writer_);
  }
  void Commit() {
    store::Manifest manifest = store::testing::FullManifest();
    auto committed = writer_->Commit(manifest, {});
    ASSERT_TRUE(committed) << committed.error().ToString();
  }
  std::vector<std::string> Names() const { return *ListDir(store_.path()); }

  TempStore store_;
  std::unique_ptr<store::ImageWriter> writer_;
  std::unique_ptr<StoreCleaner> cleaner_;
};

TEST_F(StoreCleanerTest, AbortsWhatWasWrittenSinceItsStart) {
  auto aborted = cleaner_->Abort();
  ASSERT_TRUE(aborted) << aborted.error().ToString();
  EXPECT_TRUE(Names().empty());
}

TEST_F(StoreCleanerTest, RemovesLateFilesAndLeavesTheImage) {
  Commit();
  EXPECT_EQ(Names().size(), 2u);
  ASSERT_TRUE(cleaner_->RemoveLateFiles());
  EXPECT_EQ(Names(), std::vector<std::string>{"a"});
}

TEST_F(StoreCleanerTest, DeletesTheImage) {
  Commit();
  writer_->Abandon();
  auto deleted = cleaner_->DeleteImage();
  ASSERT_TRUE(deleted) << deleted.error().ToString();
  EXPECT_FALSE(PathExists(store_ / "a"));
  ASSERT_TRUE(cleaner_->RemoveLateFiles());
  EXPECT_TRUE(Names().empty());
}

TEST_F(StoreCleanerTest, ACommittedImageIsNotLocked) {
  Commit();
  EXPECT_FALSE(store::DeleteImage(store_ / "a"));
  cleaner_->NoteCommitted();
  auto deleted = store::DeleteImage(store_ / "a");
  EXPECT_TRUE(deleted) << deleted.error().ToString();
}

}  // namespace
}  // namespace stasis::checkpoint
