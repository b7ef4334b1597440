#include "repository/sent_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "base/file.h"
#include "repository/repository_testing.h"
#include "store/store_folder.h"

namespace stasis::repository {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SentImagesTest : public testing::RepositoryTest {
 protected:
  SentImagesTest() {
    for (const char* name : {"job-moving-1-1", "job-moving-1-12", "job-moving-1-last"}) {
      MustPush(name, testing::MakeContents(1));
    }
    for (const char* name : kOthers) MustPush(name, testing::MakeContents(1));
  }
  Result<std::vector<std::string>> Sweep() {
    return SweepSentImages(store_.path(), repository_, {});
  }

  static constexpr const char* kOthers[] = {"job-moving-1-1x", "job-moving-10-1", "other"};
  testing::TempStore store_;
};

TEST_F(SentImagesTest, TheEndOfAMigrationDeletesThem) {
  auto sent = SentImages::Begin(store_.path(), "job-moving-1", repository_);
  ASSERT_TRUE(sent) << sent.error().ToString();
  ASSERT_TRUE(sent->Delete(repository_, {}));
  EXPECT_THAT(Keys("images/"),
              ElementsAre("images/job-moving-1-1x", "images/job-moving-10-1", "images/other"));
  EXPECT_THAT(*ListDir(store_.path()), IsEmpty());
}

TEST_F(SentImagesTest, ASweepDeletesThoseOfAKilledMigration) {
  auto sent = SentImages::Begin(store_.path(), "job-moving-1", repository_);
  ASSERT_TRUE(sent);
  EXPECT_THAT(*Sweep(), IsEmpty()) << "it is in progress";
  *sent = *SentImages::Begin(store_.path(), "none", repository_);
  EXPECT_THAT(*store::SweepPartials(store_.path()), IsEmpty()) << "the note was lost";
  EXPECT_THAT(*Sweep(), ElementsAre("job-moving-1-1", "job-moving-1-12", "job-moving-1-last"));
  EXPECT_EQ(Keys("images/").size(), 3u);
  EXPECT_EQ(ListDir(store_.path())->size(), 1u);
}

TEST_F(SentImagesTest, ImagesInAnotherRepositoryAreLeft) {
  testing::MemoryStore objects;
  const Repository other = testing::MustCreate(objects, *sealing_);
  ASSERT_TRUE(SentImages::Begin(store_.path(), "job-moving-1", other));
  EXPECT_THAT(*Sweep(), IsEmpty());
  EXPECT_EQ(Keys("images/").size(), 6u);
  EXPECT_THAT(*SweepSentImages(store_.path(), other, {}), IsEmpty());
  EXPECT_THAT(*ListDir(store_.path()), IsEmpty());
}

TEST_F(SentImagesTest, TheNoteStaysIfAnImageCannotBeDeleted) {
  {
    auto sent = SentImages::Begin(store_.path(), "job-moving-1", repository_);
    ASSERT_TRUE(sent);
    objects_.set_hook([](testing::Method method, const std::string&) -> Status {
      if (method != testing::Method::kDelete) return {};
      return Fail(Code::kUnavailable, "the server is gone");
    });
    EXPECT_FALSE(sent->Delete(repository_, {}));
  }
  EXPECT_FALSE(Sweep());
  objects_.set_hook(nullptr);
  EXPECT_EQ(Sweep()->size(), 3u);
}

}  // namespace
}  // namespace stasis::repository
