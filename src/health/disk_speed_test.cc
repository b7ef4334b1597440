#include "health/disk_speed.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace stasis::health {
namespace {

constexpr std::chrono::seconds kLong{60};

TEST(DiskSpeed, IsMeasuredAndLeavesNothing) {
  char folder[] = "/tmp/stasis-disk-speed.XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  auto speed = MeasureDisk(folder, 16u << 20, kLong);
  EXPECT_EQ(::rmdir(folder), 0) << "something was left in it";
  ASSERT_TRUE(speed) << speed.error().ToString();
  EXPECT_EQ(speed->bytes, 16u << 20);
  EXPECT_GT(speed->write_bytes_per_s, 0);
  EXPECT_GT(speed->read_bytes_per_s, 0);
}

TEST(DiskSpeed, StopsWhenItsTimeIsOver) {
  auto speed = MeasureDisk("/tmp", 64u << 20, std::chrono::milliseconds(0));
  ASSERT_TRUE(speed) << speed.error().ToString();
  EXPECT_LT(speed->bytes, 64u << 20);
  EXPECT_FALSE(MeasureDisk("/proc/no-such-folder", 16u << 20, kLong));
}

}  // namespace
}  // namespace stasis::health
