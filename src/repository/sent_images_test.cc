#include "repository/sent_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "base/file.h"
#include "repository/repository_testing.h"
#include "store/store_folder.h"

namespace stasis::repository {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SentImagesTest : public testing::RepositoryTest {
 protected:
  SentImagesTest() {
    for (const char* name : {"job-moving-1-1", "job-moving-1-12", "job-moving-1-last"}) {
      MustPush(name, testing::MakeContents(1));
    }
    for (const char* name : kOthers) MustPush(name, testing::MakeContents(1));
  }
  SweptImages Sweep(std::chrono::milliseconds later = {}) {
    auto swept = SweepSentImages(store_.path(), repository_, {}, NowMs() + later.count());
    EXPECT_TRUE(swept) << swept.error().ToString();
    return swept ? *swept : SweptImages{};
  }
  // Leaves the note as a killed migration does.
  void Abandon(const std::string& prefix = "job-moving-1") {
    ASSERT_TRUE(SentImages::Begin(store_.path(), prefix, repository_));
  }
  void WriteLocal(const std::string& name) {
    testing::WriteImage(store_.path(), name, testing::MakeContents(1), names_);
  }
  void FailDeletes(Code code) {
    objects_.set_hook([code](testing::Method method, const std::string&) -> Status {
      if (method != testing::Method::kDelete) return {};
      return Fail(code, "the server is gone");
    });
  }
  std::vector<std::string> Notes() const {
    auto names = *ListDir(store_.path());
    std::erase_if(names, [](const auto& name) { return !store::IsHiddenName(name, store::kSent); });
    return names;
  }

  static constexpr const char* kOthers[] = {"job-moving-1-1x", "job-moving-10-1", "other"};
  testing::TempStore store_;
};

TEST_F(SentImagesTest, TheEndOfAMigrationDeletesThem) {
  auto sent = SentImages::Begin(store_.path(), "job-moving-1", repository_);
  ASSERT_TRUE(sent) << sent.error().ToString();
  ASSERT_TRUE(sent->Delete(repository_, /*keeps_last=*/false, {}));
  EXPECT_THAT(Keys("images/"),
              ElementsAre("images/job-moving-1-1x", "images/job-moving-10-1", "images/other"));
  EXPECT_THAT(*ListDir(store_.path()), IsEmpty());
}

TEST_F(SentImagesTest, TheLastOneStaysIfItMayBeTheOnlyCopy) {
  {
    auto sent = SentImages::Begin(store_.path(), "job-moving-1", repository_);
    ASSERT_TRUE(sent);
    ASSERT_TRUE(sent->Delete(repository_, /*keeps_last=*/true, {}));
  }
  EXPECT_THAT(Keys("images/job-moving-1-last"), SizeIs(1));
  EXPECT_THAT(Keys("images/"), SizeIs(4));
  EXPECT_THAT(Notes(), SizeIs(1));
}

TEST_F(SentImagesTest, ASweepDeletesThoseOfAKilledMigration) {
  auto sent = SentImages::Begin(store_.path(), "job-moving-1", repository_);
  ASSERT_TRUE(sent);
  WriteLocal("job-moving-1-last");
  EXPECT_THAT(Sweep().deleted, IsEmpty()) << "it is in progress";
  *sent = *SentImages::Begin(store_.path(), "none", repository_);
  EXPECT_THAT(*store::SweepPartials(store_.path()), IsEmpty()) << "the note was lost";
  const SweptImages swept = Sweep();
  EXPECT_THAT(swept.deleted, ElementsAre("job-moving-1-1", "job-moving-1-12", "job-moving-1-last"));
  EXPECT_THAT(swept.kept, IsEmpty());
  EXPECT_THAT(Keys("images/"), SizeIs(3));
}

TEST_F(SentImagesTest, ASweepKeepsTheNewestWithoutALocalCopy) {
  Abandon();
  WriteLocal("job-moving-1-12");
  for (int sweep = 0; sweep < 2; ++sweep) {
    EXPECT_THAT(Sweep(kLatePush).kept, ElementsAre("job-moving-1-last")) << "not reported again";
    EXPECT_THAT(Keys("images/"), SizeIs(4));
  }
  ASSERT_TRUE(DeleteImage(repository_, "job-moving-1-last", {}));
  EXPECT_THAT(Sweep(kLatePush).kept, IsEmpty());
  EXPECT_THAT(Notes(), IsEmpty());
}

TEST_F(SentImagesTest, TheNewestIsThatOfTheLastRoundIfThereIsNoLastImage) {
  ASSERT_TRUE(DeleteImage(repository_, "job-moving-1-last", {}));
  MustPush("job-moving-1-2", testing::MakeContents(1));
  Abandon();
  SweptImages swept = Sweep();
  EXPECT_THAT(swept.kept, ElementsAre("job-moving-1-12"));
  EXPECT_THAT(swept.deleted, ElementsAre("job-moving-1-1", "job-moving-1-2"));
  WriteLocal("job-moving-1-last");
  swept = Sweep();
  EXPECT_THAT(swept.deleted, ElementsAre("job-moving-1-12")) << "a newer local image is enough";
}

// An interrupted request may still take effect.
TEST_F(SentImagesTest, AnImageThatArrivesLateIsDeletedToo) {
  WriteLocal("job-moving-1-last");
  {
    auto sent = SentImages::Begin(store_.path(), "job-moving-1", repository_);
    ASSERT_TRUE(sent);
    sent->NotePushFailed();
    ASSERT_TRUE(sent->Delete(repository_, /*keeps_last=*/false, {}));
  }
  EXPECT_THAT(Keys("images/"), SizeIs(3));
  EXPECT_THAT(Sweep().deleted, IsEmpty());
  ASSERT_TRUE(RemoveTree(local_ / "job-moving-1-last"));
  MustPush("job-moving-1-last", testing::MakeContents(1));
  EXPECT_THAT(Sweep(kLatePush / 2).deleted, ElementsAre("job-moving-1-last"));
  EXPECT_THAT(Notes(), SizeIs(1));
  EXPECT_THAT(Sweep(kLatePush).deleted, IsEmpty());
  EXPECT_THAT(Notes(), IsEmpty());
}

TEST_F(SentImagesTest, ImagesInAnotherRepositoryAreLeft) {
  testing::MemoryStore objects;
  const Repository other = testing::MustCreate(objects, *sealing_);
  ASSERT_TRUE(SentImages::Begin(store_.path(), "job-moving-1", other));
  EXPECT_THAT(Sweep(kLatePush).deleted, IsEmpty());
  EXPECT_THAT(Keys("images/"), SizeIs(6));
  EXPECT_THAT(Notes(), SizeIs(1));
}

TEST_F(SentImagesTest, ANoteOfARepositoryThatWasRemovedIsForgotten) {
  Abandon();
  EXPECT_THAT(*ForgetSentImages(store_.path(), {repository_.info().id}), IsEmpty());
  {
    const auto in_progress = SentImages::Begin(store_.path(), "job-moving-10", repository_);
    ASSERT_TRUE(in_progress);
    EXPECT_THAT(*ForgetSentImages(store_.path(), {}), ElementsAre(HasSubstr("job-moving-1.sent-")));
    EXPECT_THAT(Notes(), SizeIs(1));
  }
  EXPECT_THAT(Keys("images/"), SizeIs(6)) << "the repository was changed";
  EXPECT_THAT(*ForgetSentImages(store_.path(), {}), SizeIs(1));
  EXPECT_THAT(Notes(), IsEmpty());
  EXPECT_THAT(*ForgetSentImages(store_ / "none", {}), IsEmpty());
}

TEST_F(SentImagesTest, ANoteThatNamesNoRepositoryIsForgotten) {
  for (const char* prefix : {"job-moving-1", "job-moving-10"}) Abandon(prefix);
  const auto notes = Notes();
  ASSERT_TRUE(RemoveFile(store_ / (notes[0] + "/repository")));
  ASSERT_TRUE(WriteFileDurably(store_ / (notes[1] + "/repository"), "damaged"));
  EXPECT_THAT(*ForgetSentImages(store_.path(), {repository_.info().id}), SizeIs(2));
}

TEST_F(SentImagesTest, ANoteOfAnotherUserIsNotForgotten) {
  if (::geteuid() != 0) return;  // only root may open it
  Abandon();
  ASSERT_EQ(::chown((store_ / Notes()[0]).c_str(), 1, 1), 0);
  EXPECT_THAT(*ForgetSentImages(store_.path(), {}), IsEmpty());
}

TEST_F(SentImagesTest, TheNoteStaysIfAnImageCannotBeDeleted) {
  WriteLocal("job-moving-1-last");
  {
    auto sent = SentImages::Begin(store_.path(), "job-moving-1", repository_);
    ASSERT_TRUE(sent);
    FailDeletes(Code::kUnavailable);
    EXPECT_FALSE(sent->Delete(repository_, /*keeps_last=*/false, {}));
  }
  EXPECT_THAT(Sweep(kLatePush).failures, SizeIs(1));
  objects_.set_hook(nullptr);
  EXPECT_THAT(Sweep().deleted, SizeIs(3));
}

TEST_F(SentImagesTest, AFailureDoesNotEndASweep) {
  for (const char* prefix : {"job-moving-1", "job-moving-10"}) {
    Abandon(prefix);
    WriteLocal(std::string(prefix) + "-last");
  }
  FailDeletes(Code::kUnavailable);
  const SweptImages swept = Sweep();
  ASSERT_THAT(swept.failures, SizeIs(2));
  EXPECT_THAT(swept.failures[0].error.message, HasSubstr("the server is gone"));
  FailDeletes(Code::kCancelled);
  const auto cancelled = SweepSentImages(store_.path(), repository_, {});
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, Code::kCancelled);
}

TEST_F(SentImagesTest, AStoreThatCannotBeReadIsAFailureToReport) {
  const std::string file = store_ / "file";
  ASSERT_TRUE(WriteFileDurably(file, ""));
  const auto swept = SweepSentImages(file, repository_, {});
  ASSERT_TRUE(swept) << swept.error().ToString();
  ASSERT_THAT(swept->failures, SizeIs(1));
  EXPECT_EQ(swept->failures[0].what, file);
}

}  // namespace
}  // namespace stasis::repository
