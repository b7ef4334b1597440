#include "process/thaw.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "process/control_group.h"

namespace stasis::process {
namespace {

// A child process in a control group of its own (version 2).
class ThawTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      if (std::filesystem::exists(std::string(mount) + "/cgroup.procs")) {
        group_ = std::string(mount) + "/stasis-test-" + std::to_string(::getpid());
      }
    }
    if (group_.empty() || ::mkdir(group_.c_str(), 0755) != 0) {
      group_.clear();
      GTEST_SKIP() << "needs root and control groups of version 2";
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      for (;;) ::pause();
    }
    Write("cgroup.procs", std::to_string(pid_));
    Write("cgroup.freeze", "1");
    while (!IsFrozen({pid_})) ::usleep(1000);
  }
  void TearDown() override {
    if (group_.empty()) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    EXPECT_EQ(::rmdir(group_.c_str()), 0);
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(group_ + "/" + name) << text;
  }
  ProcessId id() const { return ReadStat({pid_})->id; }

  std::string group_;
  pid_t pid_ = 0;
};

TEST_F(ThawTest, AProcessIsAwaitedUntilItIsUnpaused) {
  std::atomic<bool> thawed{false};
  std::thread waiter([&] {
    EXPECT_TRUE(AwaitThawed(id()));
    thawed = true;
  });
  ::usleep(50'000);  // long enough to notice an AwaitThawed() that returns at once
  EXPECT_FALSE(thawed);
  Write("cgroup.freeze", "0");
  waiter.join();
  EXPECT_FALSE(IsFrozen({pid_}));
}

TEST_F(ThawTest, AKilledProcessIsNotAwaited) {
  const ProcessId frozen = id();
  std::thread waiter([&] { EXPECT_TRUE(AwaitThawed(frozen)); });
  ::kill(pid_, SIGKILL);
  waiter.join();
}

}  // namespace
}  // namespace stasis::process
