#include "base/stop_when_readable.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
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

void AwaitStop(const std::stop_token& token) {
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  const std::stop_callback callback(token, [&] {
    std::lock_guard lock(mutex);
    stopped = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return stopped; });
}

TEST_F(StopWhenReadableTest, AByteRequestsAStop) {
  auto stop = StopWhenReadable::Start(read_.get());
  ASSERT_TRUE(stop);
  ASSERT_EQ(::write(write_.get(), "c", 1), 1);
  AwaitStop((*stop)->token());
}

TEST_F(StopWhenReadableTest, OnlyTheCloseOfTheOtherEndRequestsAStop) {
  for (const bool is_socket : {false, true}) {
    int ends[2];
    if (is_socket) {
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      read_.Reset(ends[0]);
      write_.Reset(ends[1]);
    }
    ASSERT_EQ(::write(write_.get(), "c", 1), 1);
    std::stop_token token;
    {
      auto stop = StopWhenReadable::StartForClose(read_.get());
      ASSERT_TRUE(stop);
      token = (*stop)->token();
    }
    EXPECT_FALSE(token.stop_requested());
    auto stop = StopWhenReadable::StartForClose(read_.get());
    ASSERT_TRUE(stop);
    write_.Reset();
    AwaitStop((*stop)->token());
  }
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
