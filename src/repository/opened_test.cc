#include "repository/opened.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "repository/images.h"
#include "store/image_testing.h"

namespace stasis::repository {
namespace {

using ::testing::HasSubstr;

class OpenedTest : public ::testing::Test {
 protected:
  OpenedTest() {
    ::mkdir((folder_ / "images").c_str(), 0700);
    registration_.name = "fleet";
    registration_.location = folder_ / "images";
  }
  Access Reader() { return {.paths = paths_, .keys = keys_, .credentials = {}}; }
  Code OpenCode() {
    auto opened = OpenedRepository::Open(registration_, Reader());
    return opened ? Code::kOk : opened.error().code;
  }

  store::testing::TempStore folder_;
  Paths paths_{.run = folder_.path(), .data = folder_.path()};
  KeySettings keys_;
  Registration registration_;
};

TEST_F(OpenedTest, AnEncryptedRepositoryNeedsItsMasterKey) {
  EXPECT_EQ(OpenedRepository::Create(registration_, Reader()).error().code, Code::kNotFound)
      << "there is no key";
  const auto key = CreateKeyFile(KeyFilePath({}, paths_));
  ASSERT_TRUE(key);
  const auto created = OpenedRepository::Create(registration_, Reader());
  ASSERT_TRUE(created) << created.error().ToString();
  EXPECT_TRUE(created->created);
  EXPECT_EQ(created->master_key_id, key->id());
  auto opened = OpenedRepository::Open(registration_, Reader());
  ASSERT_TRUE(opened) << opened.error().ToString();
  EXPECT_TRUE(ListImages((*opened)->repository())->empty());

  keys_.file = folder_ / "other";
  ASSERT_TRUE(CreateKeyFile(keys_.file));
  opened = OpenedRepository::Open(registration_, Reader());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kPermissionDenied);
  EXPECT_THAT(opened.error().message, HasSubstr(key->id().Hex()));
}

TEST_F(OpenedTest, AnExistingRepositoryIsOpenedAndNotCreatedAgain) {
  ASSERT_TRUE(CreateKeyFile(KeyFilePath({}, paths_)));
  ASSERT_TRUE(OpenedRepository::Create(registration_, Reader()));
  Registration again = registration_;
  again.id = {};
  const auto second = OpenedRepository::Create(again, Reader());
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->created);
  EXPECT_EQ(again.id, registration_.id);
}

// A server could offer a plain repository in place of an encrypted one.
TEST_F(OpenedTest, ARepositoryThatWasExchangedIsRefused) {
  ASSERT_TRUE(CreateKeyFile(KeyFilePath({}, paths_)));
  ASSERT_TRUE(OpenedRepository::Create(registration_, Reader()));
  ASSERT_TRUE(RemoveFile(registration_.location + "/repo"));
  EXPECT_EQ(OpenCode(), Code::kNotFound);
  Registration plain = registration_;
  plain.id = {};
  plain.encrypted = false;
  ASSERT_TRUE(OpenedRepository::Create(plain, Reader()));
  EXPECT_EQ(OpenCode(), Code::kPermissionDenied);
  registration_.id = {};
  EXPECT_EQ(OpenCode(), Code::kFailedPrecondition);
}

TEST_F(OpenedTest, APlainRepositoryNeedsNoKeyButTheWord) {
  registration_.encrypted = false;
  ASSERT_TRUE(OpenedRepository::Create(registration_, Reader()));
  EXPECT_EQ(OpenCode(), Code::kOk);
  registration_.encrypted = true;
  EXPECT_EQ(OpenCode(), Code::kFailedPrecondition);
}

TEST_F(OpenedTest, AFolderWithOtherFilesBecomesNoRepository) {
  registration_.encrypted = false;
  ASSERT_TRUE(ReplaceFile(registration_.location + "/letter", "x"));
  EXPECT_EQ(OpenedRepository::Create(registration_, Reader()).error().code, Code::kInvalidArgument);
  EXPECT_EQ(ListDir(registration_.location)->size(), 1u);
}

}  // namespace
}  // namespace stasis::repository
