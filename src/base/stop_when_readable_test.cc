#include "base/stop_when_readable.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

namespace stasis {
namespace {

class StopWhenReadableTest : public ::testing::Test {
 protected:
  StopWhenReadableTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_.Reset(ends[0]);
    write_.Reset(ends[1]);
  }
  UniqueFd read_, write_;
};

TEST_F(StopWhenReadableTest, AByteRequestsAStop) {
  auto stop = StopWhenReadable::Start(read_.get());
  ASSERT_TRUE(stop);
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  const std::stop_callback callback((*stop)->token(), [&] {
    std::lock_guard lock(mutex);
    stopped = true;
    changed.notify_all();
  });
  ASSERT_EQ(::write(write_.get(), "c", 1), 1);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return stopped; });
}

TEST_F(StopWhenReadableTest, WithoutAByteItEndsQuietly) {
  std::stop_token token;
  {
    auto stop = StopWhenReadable::Start(read_.get());
    ASSERT_TRUE(stop);
    token = (*stop)->token();
  }
  EXPECT_FALSE(token.stop_requested());
}

}  // namespace
}  // namespace stasis
