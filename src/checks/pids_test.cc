#include "checks/pids.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "process/proc.h"

namespace stasis::checks {
namespace {

store::Manifest With(const std::vector<pid_t>& numbers) {
  store::Manifest manifest;
  for (pid_t number : numbers) {
    store::Process process;
    process.pid = 1'000'000 + number;  // not the pid that a restore needs
    process.namespace_pid = number;
    manifest.processes.push_back(process);
  }
  return manifest;
}

TEST(PidsTest, ATakenPidNamesItsProcessAndAWorkaround) {
  Status taken = CheckPidsFree(With({::getpid()}));
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kAborted);
  EXPECT_NE(taken.error().message.find(std::to_string(::getpid())), std::string::npos);
  EXPECT_NE(taken.error().hint.find("--new-pidns"), std::string::npos);
  EXPECT_TRUE(CheckPidsFree(With({1, ::getpid()}))) << "CRIU makes their namespace";
  EXPECT_TRUE(CheckPidsFree(With({0x7ffffff0 - 1'000'000})));
}

TEST(PidsTest, AnotherPidNamespaceHelpsUnlessTheProgramItselfIsRunning) {
  const auto self = process::ReadStat({::getpid()});
  ASSERT_TRUE(self);
  EXPECT_TRUE(NeedsPidNamespace(With({::getpid()})));
  EXPECT_FALSE(NeedsPidNamespace(With({0x7ffffff0 - 1'000'000})));
  EXPECT_FALSE(NeedsPidNamespace(With({1, ::getpid()}))) << "CRIU makes their namespace";
  // The parent's id is taken by another process; that of this process is the program's own.
  store::Manifest running = With({::getppid(), ::getpid()});
  running.processes.back().start_ticks = self->id.start_time;
  EXPECT_FALSE(NeedsPidNamespace(running));
  const Status refused = CheckPidsFree(running);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("still running"), std::string::npos);
}

}  // namespace
}  // namespace stasis::checks
