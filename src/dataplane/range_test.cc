#include "dataplane/range.h"

#include <gtest/gtest.h>

namespace stasis::dataplane {
namespace {

TEST(Range, LaidOutOneAfterAnother) {
  std::vector<Range> ranges = {{0x1000, 10}, {0x2000, 20}, {0x3000, 5}};
  EXPECT_EQ(*LayOut(ranges), 35u);
  EXPECT_EQ(ranges[2], (Range{0x3000, 5, 30, 5}));
  EXPECT_TRUE(CheckWithin(ranges, 35));
  EXPECT_FALSE(CheckWithin(ranges, 34));
}

TEST(Range, ImpossibleSizesAreRefused) {
  for (uint64_t size : {uint64_t{0}, kMaxTotalBytes + 1, ~uint64_t{0}}) {
    std::vector<Range> ranges = {{0, 1}, {0, size}};
    auto total = LayOut(ranges);
    ASSERT_FALSE(total) << size;
    EXPECT_EQ(total.error().code, Code::kInvalidArgument);
  }
  // Each size is valid, but the sum is not.
  std::vector<Range> ranges(3, Range{0, kMaxTotalBytes / 2});
  EXPECT_FALSE(TotalBytes(ranges));
  EXPECT_FALSE(CheckWithin({{0, 10, ~uint64_t{0} - 2, 10}}, 100));
  EXPECT_FALSE(CheckWithin({{0, 10, 0, 11}}, 100));
}

TEST(Range, SharedPlacesAreSeen) {
  EXPECT_TRUE(CheckDisjoint({{0, 10, 10, 10}, {0, 10, 0, 10}, {0, 10, 5, 0}, {0, 5, 20, 5}}));
  EXPECT_FALSE(CheckDisjoint({{0, 10, 10, 10}, {0, 11, 0, 11}}));
  EXPECT_FALSE(CheckDisjoint({{0, 10, 0, 10}, {0, 10, 0, 10}}));
}

TEST(Range, NeighboursAreJoinedAndChunksAreNotCrossed) {
  std::vector<Range> ranges(10, Range{0, 30});
  ASSERT_TRUE(LayOut(ranges));
  Pieces pieces = Cut(ranges, 100);
  EXPECT_EQ(pieces.stored, (std::vector<Piece>{{0, 0, 100}, {100, 100, 100}, {200, 200, 100}}));
  EXPECT_TRUE(pieces.zero.empty());
}

TEST(Range, BytesThatAreNotStoredAreCleared) {
  // The arena's order differs from the device's.
  std::vector<Range> ranges = {{0, 30, 50, 30}, {0, 30, 0, 10}, {0, 30, 0, 0}, {0, 10, 90, 10}};
  Pieces pieces = Cut(ranges, 60);
  EXPECT_EQ(pieces.stored,
            (std::vector<Piece>{{30, 0, 10}, {0, 50, 10}, {10, 60, 20}, {90, 90, 10}}));
  EXPECT_EQ(pieces.zero, (std::vector<Piece>{{40, 0, 50}}));
}

}  // namespace
}  // namespace stasis::dataplane
