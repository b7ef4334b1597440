#include "repository/pack_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "repository/repository_testing.h"

namespace stasis::repository {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeContents;

class PackNamesTest : public testing::RepositoryTest {};

TEST_F(PackNamesTest, AreThoseOfTheOwnKeyAndBounded) {
  MustPush("llama", MakeContents(1));
  const auto record = repository_.ReadImage("llama", {});
  ASSERT_TRUE(record && record->packs.size() == 1);
  std::vector<std::string> unread;
  auto names = ReadPackNames(repository_, *record, names_, {}, unread);
  ASSERT_TRUE(names && names->size() == 1);
  const uint64_t units = (*names)[0].size();
  EXPECT_GT(units, 100u);
  names = ReadPackNames(repository_, *record, names_, {}, unread, units);
  EXPECT_EQ((*names)[0].size(), units);
  EXPECT_THAT(unread, IsEmpty());
  names = ReadPackNames(repository_, *record, testing::NamesOf(9), {}, unread);
  EXPECT_THAT((*names)[0], IsEmpty());
  EXPECT_THAT(unread, IsEmpty());
  names = ReadPackNames(repository_, *record, names_, {}, unread, units - 1);
  EXPECT_THAT((*names)[0], IsEmpty());
  EXPECT_THAT(unread, ElementsAre(HasSubstr("more than")));
}

}  // namespace

}  // namespace stasis::repository
