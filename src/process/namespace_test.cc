#include "process/namespace.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"
#include "process/tree.h"

namespace stasis::process {
namespace {

TEST(NamespaceTest, PidsOfThisNamespaceAreUnchanged) {
  EXPECT_EQ(ReadInnerPid({::getpid()}).value_or(0), ::getpid());
  EXPECT_FALSE(IsInOtherPidNamespace({::getpid()}).value_or(true));
  auto ours = ReadNamespace({::getpid()}, "pid");
  ASSERT_TRUE(ours);
  EXPECT_EQ(FindByInnerPid(*ours, ::getpid()).value_or(HostPid{}).value, ::getpid());
}

TEST(NamespaceTest, AMissingProcessIsNotFound) {
  auto none = ReadInnerPid({0x7ffffff0});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kNotFound);
  auto ours = ReadNamespace({::getpid()}, "pid");
  ASSERT_TRUE(ours);
  auto found = FindByInnerPid(*ours, 0x7ffffff0);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kNotFound);
}

// Starts an init process in a new pid namespace, with a child that waits.
TEST(NamespaceTest, AProcessIsFoundByItsInnerPid) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  pid_t outer = ::fork();
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(errno == EPERM ? 77 : 1);
    pid_t init = ::fork();
    if (init == 0) {
      const pid_t number = ::fork();
      if (number == 0) {
        for (;;) ::pause();
      }
      (void)!::write(ready[1], &number, sizeof number);
      for (;;) ::pause();
    }
    ::waitpid(init, nullptr, 0);
    ::_exit(0);
  }
  ::close(ready[1]);
  UniqueFd reading(ready[0]);
  pid_t inner = 0;  // the child's pid in the namespace of the init process
  if (TEMP_FAILURE_RETRY(::read(reading.get(), &inner, sizeof inner)) != sizeof inner) {
    int status = 0;
    ::waitpid(outer, &status, 0);
    ASSERT_EQ(WEXITSTATUS(status), 77);
    GTEST_SKIP() << "creating a pid namespace needs root";
  }
  auto tree = ReadTree({outer});
  ASSERT_TRUE(tree);
  ASSERT_EQ(tree->members.size(), 3u);
  const HostPid init = tree->members[1].id.pid, child = tree->members[2].id.pid;
  EXPECT_TRUE(IsInOtherPidNamespace(init).value_or(false));
  EXPECT_EQ(ReadInnerPid(init).value_or(0), 1);
  EXPECT_EQ(ReadInnerPid(child).value_or(0), inner);
  auto its = ReadNamespace(init, "pid");
  ASSERT_TRUE(its);
  EXPECT_EQ(FindByInnerPid(*its, inner).value_or(HostPid{}), child);
  EXPECT_FALSE(FindByInnerPid(*its, child.value));
  ::kill(init.value, SIGKILL);
  ::waitpid(outer, nullptr, 0);
}

}  // namespace
}  // namespace stasis::process
