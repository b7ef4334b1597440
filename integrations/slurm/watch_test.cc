#include "slurm/watch.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace stasis::slurm {
namespace {

TEST(WatchTest, IsReadableUntilItsEventsAreForgotten) {
  const std::string folder = ::testing::TempDir() + "watch_test" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  auto watch = Watch(folder, IN_MOVED_TO);
  ASSERT_TRUE(watch);
  pollfd ready{watch->get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  EXPECT_TRUE(ReplaceFile(folder + "/file", "x"));
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  ForgetEvents(*watch);
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  std::filesystem::remove_all(folder);
}

TEST(WatchTest, AnErrorNamesTheLimit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  auto watch = Watch("/", IN_MOVED_TO);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(watch);
  EXPECT_THAT(watch.error().hint, ::testing::HasSubstr("fs.inotify.max_user_instances"));
  EXPECT_EQ(Watch("/no/such/folder", IN_MOVED_TO).error().hint.find("inotify"), std::string::npos);
}

}  // namespace
}  // namespace stasis::slurm
