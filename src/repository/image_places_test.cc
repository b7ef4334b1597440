#include "repository/image_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "repository/repository_testing.h"

namespace stasis::repository {

namespace {

using testing::MakeContents;

class ImagePlacesTest : public testing::RepositoryTest {};

TEST_F(ImagePlacesTest, BoundsWhatItKeepsOfAllIndexes) {
  MustPush("first", MakeContents(1));
  testing::Contents contents = MakeContents(1);
  contents.gpu += MakeContents(2).gpu;
  MustPush("second", contents);
  const auto record = repository_.ReadImage("second", {});
  ASSERT_TRUE(record && record->packs.size() == 2);
  auto places = ImagePlaces::Read(repository_, *record, {});
  ASSERT_TRUE(places) << places.error().ToString();
  const uint64_t groups = places->table(0).groups().size() + places->table(1).groups().size();
  EXPECT_TRUE(ImagePlaces::Read(repository_, *record, {}, groups));
  places = ImagePlaces::Read(repository_, *record, {}, groups - 1);
  ASSERT_FALSE(places);
  EXPECT_EQ(places.error().code, Code::kResourceExhausted);
}

}  // namespace

}  // namespace stasis::repository
