#include "base/file_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <future>

#include "base/fd.h"

namespace stasis {
namespace {

using std::chrono::milliseconds;

class FileLockTest : public testing::Test {
 protected:
  void SetUp() override { fd_ = UniqueFd(::mkostemp(path_, O_CLOEXEC)); }
  void TearDown() override { ::unlink(path_); }
  UniqueFd Another() { return UniqueFd(::open(path_, O_RDWR | O_CLOEXEC)); }

  char path_[40] = "/tmp/stasis-file-lock-test-XXXXXX";
  UniqueFd fd_;
};

TEST_F(FileLockTest, WaitsForAHeldLockUntilTheDeadline) {
  ASSERT_TRUE(TryLock(fd_.get()));
  UniqueFd other = Another();
  EXPECT_FALSE(LockUntil(other.get(), Deadline::In(milliseconds(30))));
}

TEST_F(FileLockTest, AWaiterGetsAReleasedLock) {
  ASSERT_TRUE(TryLock(fd_.get()));
  UniqueFd other = Another();
  auto got = std::async(std::launch::async, [&] { return LockUntil(other.get(), Deadline()); });
  fd_.Reset();
  EXPECT_TRUE(got.get().has_value());
  UniqueFd third = Another();
  EXPECT_FALSE(TryLock(third.get()));
}

// The abandoned thread still waits, and gets the lock when the holder releases it.
TEST_F(FileLockTest, AnAbandonedWaitLeavesTheLockToItsCaller) {
  ASSERT_TRUE(TryLock(fd_.get()));
  UniqueFd other = Another();
  ASSERT_FALSE(LockUntil(other.get(), Deadline::In(milliseconds(30))));
  fd_.Reset();
  ASSERT_TRUE(TryLock(other.get()));
  UniqueFd third = Another();
  EXPECT_FALSE(LockUntil(third.get(), Deadline::In(milliseconds(300))));
}

}  // namespace
}  // namespace stasis
