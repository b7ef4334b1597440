#include "process/proc.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "process/end.h"
#include "process/tree.h"

namespace stasis::process {
namespace {

class Child {
 public:
  // Starts a child that runs `body` and then waits to be killed.
  template <class F>
  explicit Child(F body) {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      body();
      (void)!::write(fds[1], "r", 1);
      for (;;) ::pause();
    }
    char c;
    (void)!::read(fds[0], &c, 1);
    ::close(fds[0]);
    ::close(fds[1]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  HostPid pid() const { return {pid_}; }

 private:
  pid_t pid_;
};

TEST(ProcTest, NameWithParenthesesAndSpacesIsRead) {
  Child child([] { ::prctl(PR_SET_NAME, "a) R (b c"); });
  auto stat = ReadStat(child.pid());
  ASSERT_TRUE(stat) << stat.error().ToString();
  EXPECT_EQ(stat->comm, "a) R (b c");
  EXPECT_EQ(stat->parent.value, ::getpid());
  EXPECT_GT(stat->id.start_time, 0u);
  EXPECT_FALSE(stat->kernel_thread);
}

TEST(ProcTest, AKilledProcessDiffersFromAnEndedOne) {
  Child killed([] {});
  EXPECT_FALSE(WasKilled(ReadStat(killed.pid())->id));
  ::kill(killed.pid().value, SIGKILL);
  EXPECT_TRUE(WasKilled(ReadStat(killed.pid())->id));
  const pid_t ended = ::fork();
  if (ended == 0) {  // a thread other than the first ends the process
    std::thread([] { ::_exit(0); }).join();
  }
  for (pid_t pid : {killed.pid().value, ended}) {
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(WasKilled(ReadStat({pid})->id), pid != ended) << "as a zombie";
  }
  ::waitpid(ended, nullptr, 0);
}

TEST(ProcTest, WithoutDescriptorsAProcessIsNotReportedAsEnded) {
  Child child([] {});
  const ProcessId id = ReadStat(child.pid())->id;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  Status ended = WaitForEnd(id, Deadline::In(std::chrono::milliseconds(1)));
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, Code::kResourceExhausted) << ended.error().ToString();
  ::kill(child.pid().value, SIGKILL);
  EXPECT_TRUE(WaitForEnd(id, Deadline::In(std::chrono::seconds(10))));
}

TEST(ProcTest, AThreadDiffersFromAProcess) {
  pid_t tid = 0;
  std::thread([&] {
    tid = ::gettid();
    EXPECT_TRUE(IsThreadOfAnother(tid));
  }).join();
  EXPECT_FALSE(IsThreadOfAnother(::getpid()));
}

TEST(ProcTest, PidfdRejectsAReusedPid) {
  Child child([] {});
  auto stat = ReadStat(child.pid());
  ASSERT_TRUE(stat);
  EXPECT_TRUE(OpenPidfd(stat->id));
  ProcessId older = stat->id;
  older.start_time -= 1;
  auto other = OpenPidfd(older);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kNotFound);
}

TEST(ProcTest, GoneProcessIsNotFound) {
  pid_t pid;
  {
    Child child([] {});
    pid = child.pid().value;
  }
  auto stat = ReadStat({pid});
  ASSERT_FALSE(stat);
  EXPECT_EQ(stat.error().code, Code::kNotFound);
  EXPECT_EQ(stat.error().message, "there is no process " + std::to_string(pid));
}

TEST(ProcTest, OpenFilesAndMappingsAreListed) {
  Child child([] { (void)!::open("/dev/zero", O_RDONLY); });
  auto files = ReadOpenFiles(child.pid());
  ASSERT_TRUE(files);
  bool found = false;
  for (const auto& file : *files) found |= file.target == "/dev/zero";
  EXPECT_TRUE(found);
  auto maps = ReadMappings(child.pid());
  ASSERT_TRUE(maps);
  bool stack = false;
  for (const auto& m : *maps) stack |= m.path == "[stack]" && m.end > m.begin;
  EXPECT_TRUE(stack);
}

TEST(TreeTest, GrandchildrenBelongToTheTree) {
  Child child([] {
    if (::fork() == 0) {
      for (;;) ::pause();
    }
  });
  auto tree = ReadTree(child.pid());
  ASSERT_TRUE(tree);
  ASSERT_EQ(tree->members.size(), 2u);
  EXPECT_EQ(tree->root().id.pid, child.pid());
  ::kill(tree->members[1].id.pid.value, SIGKILL);
}

TEST(TreeTest, AChildOfAnyThreadBelongsToTheTree) {
  for (const bool ends_threads : {false, true}) {
    Child child([&] {
      std::promise<void> forked;
      std::thread([&] {
        if (::fork() != 0) forked.set_value();
        for (;;) ::pause();
      }).detach();
      forked.get_future().wait();
      if (!ends_threads) return;
      std::thread([] {
        for (;;) std::thread([] {}).join();
      }).detach();
    });
    auto tree = ReadTree(child.pid());
    ASSERT_TRUE(tree) << tree.error().ToString();
    ASSERT_EQ(tree->members.size(), 2u) << ends_threads;
    EXPECT_EQ(tree->members[1].parent, child.pid());
    ::kill(tree->members[1].id.pid.value, SIGKILL);
  }
}

}  // namespace
}  // namespace stasis::process
