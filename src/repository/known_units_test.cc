#include "repository/known_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "repository/repository_testing.h"

namespace stasis::repository {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeContents;

class KnownUnitsTest : public testing::RepositoryTest {};

TEST_F(KnownUnitsTest, AreBounded) {
  MustPush("llama", MakeContents(1));
  const auto index = repository_.ReadNames(ParseIndexKey(Keys("index/")[0])->push, {});
  ASSERT_TRUE(index);
  const uint64_t units = index->names.size(), groups = index->packs[0].groups().size();
  const auto look = [&](uint64_t max_units, uint64_t max_groups) {
    auto known = KnownUnits::Look(repository_, index->naming, {}, {max_units, max_groups});
    EXPECT_TRUE(known) << known.error().ToString();
    return std::move(*known);
  };
  const uint32_t bytes = index->packs[0].Place(0).plain_bytes;
  const KnownUnits all = look(units, groups);
  EXPECT_NE(all.Find(index->names[0], bytes), nullptr);
  EXPECT_THAT(all.notes(), IsEmpty());
  for (const KnownUnits& part : {look(units - 1, groups), look(units, groups - 1)}) {
    EXPECT_EQ(part.Find(index->names[0], bytes), nullptr);
    EXPECT_THAT(part.notes(), ElementsAre(HasSubstr("more units than a push can compare")));
  }
}

}  // namespace

}  // namespace stasis::repository
