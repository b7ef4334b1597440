#include "store/unit_slices.h"

#include <gtest/gtest.h>

#include <string>

namespace stasis::store {
namespace {

std::string Text(const std::vector<UnitRun>& runs) {
  std::string text;
  for (const UnitRun& run : runs) {
    if (!text.empty()) text += ' ';
    text += run.is_zero() ? "zeros" : std::to_string(run.pack) + ':' + std::to_string(run.first);
    text += '+' + std::to_string(run.units);
  }
  return text;
}

constexpr uint32_t kZeros = UnitRun::kZeros;
const std::vector<UnitRun> kRuns = {{0, 100, 10}, {kZeros, 0, 5}, {1, 7, 5}};

TEST(UnitSlices, DivideASequence) {
  const SlicedRuns sliced = SliceRuns(kRuns, {{2, 3}, {8, 8}, {18, 2}});
  ASSERT_EQ(sliced.slices.size(), 3u);
  EXPECT_EQ(Text(sliced.slices[0]), "0:102+3");
  EXPECT_EQ(Text(sliced.slices[1]), "0:108+2 zeros+5 1:7+1");
  EXPECT_EQ(Text(sliced.slices[2]), "1:10+2");
  EXPECT_EQ(Text(sliced.rest), "0:100+2 0:105+3 1:8+2");
}

TEST(UnitSlices, MayBeNothingOrEverything) {
  EXPECT_EQ(Text(SliceRuns(kRuns, {}).rest), Text(kRuns));
  const SlicedRuns all = SliceRuns(kRuns, {{0, 20}});
  EXPECT_EQ(Text(all.slices[0]), Text(kRuns));
  EXPECT_EQ(Text(all.rest), "");
  const SlicedRuns halves = SliceRuns(kRuns, {{0, 10}, {10, 10}});
  EXPECT_EQ(Text(halves.slices[0]), "0:100+10");
  EXPECT_EQ(Text(halves.slices[1]), "zeros+5 1:7+5");
}

// The parts around a slice are one run again if they follow each other in the pack.
TEST(UnitSlices, JoinWhatFollows) {
  const std::vector<UnitRun> runs = {{0, 0, 4}, {2, 50, 4}, {0, 4, 4}};
  EXPECT_EQ(Text(SliceRuns(runs, {{4, 4}}).rest), "0:0+8");
}

}  // namespace
}  // namespace stasis::store
