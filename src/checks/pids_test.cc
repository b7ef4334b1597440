#include "checks/pids.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

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
  EXPECT_TRUE(NeedsPidNamespace(With({::getpid()}), {}));
  EXPECT_FALSE(NeedsPidNamespace(With({0x7ffffff0 - 1'000'000}), {}));
  EXPECT_FALSE(NeedsPidNamespace(With({1, ::getpid()}), {})) << "CRIU makes their namespace";
  // The parent's id is taken by another process; that of this process is the program's own.
  store::Manifest running = With({::getppid(), ::getpid()});
  running.processes.back().start_ticks = self->id.start_time;
  EXPECT_FALSE(NeedsPidNamespace(running, {}));
  const Status refused = CheckPidsFree(running);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("still running"), std::string::npos);
}

// A child process that runs until the end of the test.
class Child {
 public:
  template <class Work>
  explicit Child(Work work) : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      work();
      for (;;) ::pause();
    }
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  uint64_t start_time() const { return process::ReadStat({pid_})->id.start_time; }

 private:
  pid_t pid_;
};

TEST(PidsTest, AProgramOfAPidNamespaceIsFoundByItsPidOutside) {
  const Child program([] {});
  store::Manifest manifest = With({::getpid()});  // the pid inside is taken by another process
  manifest.processes[0].pid = program.pid();
  manifest.processes[0].start_ticks = program.start_time();
  EXPECT_TRUE(NeedsPidNamespace(manifest, {})) << "the image is of another boot";
  manifest.host = store::HostNow();
  EXPECT_FALSE(NeedsPidNamespace(manifest, {}));
  manifest.processes[0].namespace_pid = 0x7ffffff0 - 1'000'000;  // free
  const Status refused = CheckPidsFree(manifest);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("still running"), std::string::npos);
  ++manifest.processes[0].start_ticks;
  EXPECT_TRUE(CheckPidsFree(manifest));
}

TEST(PidsTest, AProgramRunsWithoutItsMainThread) {
  const Child program([] {
    std::thread([] { ::pause(); }).detach();
    ::syscall(SYS_exit, 0);
  });
  while (process::ReadStat({program.pid()})->state != 'Z') std::this_thread::yield();
  store::Manifest manifest = With({program.pid()});
  manifest.processes[0].start_ticks = program.start_time();
  EXPECT_FALSE(NeedsPidNamespace(manifest, {}));
  const Status refused = CheckPidsFree(manifest);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("still running"), std::string::npos);
}

TEST(PidsTest, IdsOfThreadsAndProcessGroupsCount) {
  std::atomic<pid_t> thread_id = 0;
  std::atomic<bool> done = false;
  std::thread thread([&] {
    thread_id = ::gettid();
    thread_id.notify_all();
    done.wait(false);
  });
  thread_id.wait(0);
  const store::Manifest free = With({0x7ffffff0 - 1'000'000});
  EXPECT_TRUE(NeedsPidNamespace(free, {thread_id}));
  EXPECT_FALSE(NeedsPidNamespace(With({1}), {thread_id})) << "CRIU makes their namespace";
  EXPECT_FALSE(NeedsPidNamespace(free, {0x7ffffff0}));
  done = true;
  done.notify_all();
  thread.join();

  // A process group whose leader has ended.
  auto leader = std::make_unique<Child>([] { ::setpgid(0, 0); });
  const pid_t group = leader->pid();
  ::setpgid(group, group);
  const Child member([] {});
  ASSERT_EQ(::setpgid(member.pid(), group), 0);
  leader.reset();
  EXPECT_TRUE(NeedsPidNamespace(free, {group}));
}

}  // namespace
}  // namespace stasis::checks
