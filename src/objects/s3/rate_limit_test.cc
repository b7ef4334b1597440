#include "objects/s3/rate_limit.h"

#include <gtest/gtest.h>

namespace stasis::objects::s3 {
namespace {

using std::chrono::milliseconds;

constexpr RateLimit::TimePoint kStart{std::chrono::hours(1)};

TEST(RateLimit, BoundsTheRate) {
  RateLimit limit(1'000'000);
  RateLimit::TimePoint now = kStart;
  uint64_t moved = 0;
  for (; now < kStart + std::chrono::seconds(10); now += limit.WaitAt(now)) {
    ASSERT_TRUE(limit.Allows(now));
    limit.Take(now, 30'000);
    moved += 30'000;
  }
  EXPECT_LE(moved, 10'130'000u);
  EXPECT_GE(moved, 9'900'000u);
}

TEST(RateLimit, WaitsForThePiecesBefore) {
  RateLimit limit(1000);
  EXPECT_EQ(limit.WaitAt(kStart), milliseconds(0));
  limit.Take(kStart, 600);  // 100 ms of the idle time count
  EXPECT_FALSE(limit.Allows(kStart + milliseconds(499)));
  EXPECT_EQ(limit.WaitAt(kStart), milliseconds(500));
  EXPECT_TRUE(limit.Allows(kStart + milliseconds(500)));
}

TEST(RateLimit, DoesNotMakeUpForLongIdleTime) {
  RateLimit limit(1000);
  const auto later = kStart + std::chrono::hours(1);
  limit.Take(kStart, 100);
  limit.Take(later, 100);
  EXPECT_TRUE(limit.Allows(later));
  limit.Take(later, 100);
  EXPECT_EQ(limit.WaitAt(later), milliseconds(100));
}

TEST(RateLimit, ChoosesPieces) {
  EXPECT_EQ(RateLimit(1'000'000).PieceBytes(512 << 10), 100'000u);
  EXPECT_EQ(RateLimit(1).PieceBytes(512 << 10), 1024u);
  EXPECT_EQ(RateLimit(1 << 30).PieceBytes(512 << 10), 512u << 10);
}

TEST(RateLimit, IsNoneByDefault) {
  RateLimit limit(0);
  limit.Take(kStart, SIZE_MAX);
  EXPECT_TRUE(limit.Allows(kStart));
  EXPECT_EQ(limit.PieceBytes(7), 7u);
}

}  // namespace
}  // namespace stasis::objects::s3
