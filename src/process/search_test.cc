#include "process/search.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"

namespace stasis::process {
namespace {

std::vector<pid_t> HoldersOf(int fd) {
  auto target = ReadLink("/proc/self/fd/" + std::to_string(fd));
  auto holders = FindHolders({target.value_or("?"), "socket:[0]"});
  std::vector<pid_t> pids;
  for (const Stat& stat : holders.value_or(std::vector<Stat>())) pids.push_back(stat.id.pid.value);
  return pids;
}

TEST(SearchTest, AllHoldersOfASocketAreFound) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd ours(ends[0]), other(ends[1]);
  EXPECT_EQ(HoldersOf(ours.get()), std::vector<pid_t>{::getpid()});
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const std::vector<pid_t> holders = HoldersOf(ours.get());
  EXPECT_EQ(holders.size(), 2u);
  EXPECT_NE(std::find(holders.begin(), holders.end(), child), holders.end());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(HoldersOf(ours.get()), std::vector<pid_t>{::getpid()});
  EXPECT_TRUE(FindHolders({})->empty());
}

TEST(SearchTest, AllProcessesAreListed) {
  auto all = ListProcesses();
  ASSERT_TRUE(all) << all.error().ToString();
  for (pid_t pid : {::getpid(), ::getppid()}) {
    EXPECT_NE(std::find(all->begin(), all->end(), HostPid{pid}), all->end()) << pid;
  }
}

}  // namespace
}  // namespace stasis::process
