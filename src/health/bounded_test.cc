#include "health/bounded.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "health/disk_speed.h"

namespace stasis::health {
namespace {

constexpr std::chrono::seconds kLong{60};

TEST(Bounded, GivesTheAnswer) {
  auto answer = AskBounded([] { return Result<std::string>("forty-two"); }, Deadline::In(kLong));
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(*answer, "forty-two");
}

TEST(Bounded, GivesTheError) {
  auto answer = AskBounded(
      []() -> Result<std::string> { return Fail(Code::kNotFound, "no such disk", "buy one"); },
      Deadline::In(kLong));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kNotFound);
  EXPECT_EQ(answer.error().message, "no such disk");
  EXPECT_EQ(answer.error().hint, "buy one");
}

TEST(Bounded, OneThatHangsIsLeft) {
  Stopwatch watch;
  auto answer = AskBounded(
      []() -> Result<std::string> {
        while (true) ::pause();
      },
      Deadline::In(std::chrono::milliseconds(50)));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kDeadlineExceeded);
  EXPECT_LT(watch.Seconds(), 30);
}

TEST(Bounded, OneThatDiesIsSaid) {
  auto answer = AskBounded(
      []() -> Result<std::string> {
        ::raise(SIGKILL);
        return "";
      },
      Deadline::In(kLong));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kInternal);
}

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
