#include "checkpoint/teardown.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/file.h"
#include "store/image_testing.h"

namespace stasis::checkpoint {
namespace {

// The processes that wrote the image may end later than the command that was killed.
TEST(TeardownTest, TheSweepWaitsForTheHelpersOfTheKilledCommand) {
  store::testing::TempStore store;
  const std::string folder = store.path() + "/.a.partial-0123456789abcdef.late";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::flock(fd, LOCK_SH), 0);
  pid_t helper = ::fork();
  if (helper == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::_exit(0);
  }
  ::close(fd);
  auto left = SweepStoreOf(store.path() + "/a");
  EXPECT_TRUE(left) << left.error().ToString();
  EXPECT_FALSE(PathExists(folder));
  EXPECT_EQ(::waitpid(helper, nullptr, 0), helper);
}

// A live dump into the same store is not disturbed.
TEST(TeardownTest, TheSweepLeavesFoldersOfOtherImagesInUse) {
  store::testing::TempStore store;
  const std::string folder = store.path() + "/.b.partial-0123456789abcdef";
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::flock(fd, LOCK_SH), 0);
  EXPECT_TRUE(SweepStoreOf(store.path() + "/a"));
  EXPECT_TRUE(PathExists(folder));
  ::close(fd);
}

}  // namespace
}  // namespace stasis::checkpoint
