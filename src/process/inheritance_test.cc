#include "process/inheritance.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace stasis::process {
namespace {

// Returns the difference from a child that called `change`.
std::string DifferenceAfter(const std::function<bool()>& change) {
  int ready[2];
  if (::pipe(ready) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const char answer = change() ? 'y' : 'n';
    (void)!::write(ready[1], &answer, 1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char answer = 0;
  const bool changed = ::read(ready[0], &answer, 1) == 1 && answer == 'y';
  ::close(ready[0]);
  std::string difference = changed ? InheritanceDifference({child}) : "not changed";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return difference;
}

bool Lower(__rlimit_resource resource, bool hard) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return false;
  limit.rlim_cur = 1024;
  if (hard) limit.rlim_max = 1024;
  return ::setrlimit(resource, &limit) == 0;
}

TEST(InheritanceTest, AChildEqualsItsParent) {
  EXPECT_EQ(DifferenceAfter([] { return true; }), "");
}

TEST(InheritanceTest, EachDifferenceIsNamed) {
  EXPECT_EQ(DifferenceAfter([] { return Lower(RLIMIT_CORE, /*hard=*/true); }),
            "the limit on core file size");
  EXPECT_EQ(DifferenceAfter([] { return Lower(RLIMIT_RSS, /*hard=*/false); }),
            "the limit on resident memory");
  EXPECT_EQ(DifferenceAfter([] { return ::nice(1) != -1; }), "the nice value");
  EXPECT_EQ(DifferenceAfter([] {
              const sched_param none{};
              return ::sched_setscheduler(0, SCHED_BATCH, &none) == 0;
            }),
            "the scheduling policy");
  EXPECT_EQ(DifferenceAfter([] { return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0; }),
            "no_new_privs");
}

TEST(InheritanceTest, RootsGroupsAndCapabilitiesAreCompared) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(DifferenceAfter([] {
              const gid_t group = 4711;
              return ::setgroups(1, &group) == 0;
            }),
            "the supplementary groups");
  // Another group may already forbid reading the limits.
  EXPECT_NE(DifferenceAfter([] { return ::setegid(4711) == 0; }), "");
  EXPECT_EQ(DifferenceAfter([] { return ::prctl(PR_CAPBSET_DROP, CAP_CHOWN, 0, 0, 0) == 0; }),
            "the capabilities");
}

TEST(InheritanceTest, ServersRaiseTheirSoftLimitOnOpenFiles) {
  EXPECT_EQ(DifferenceAfter([] {
              rlimit limit{};
              if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
              --limit.rlim_cur;
              return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
            }),
            "");
  EXPECT_EQ(DifferenceAfter([] { return Lower(RLIMIT_NOFILE, /*hard=*/true); }),
            "the limit on open files");
}

TEST(InheritanceTest, TheProcessorsAreCompared) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mine, &mine), 0);
  if (CPU_COUNT(&mine) < 2) return;  // no other set of CPUs to choose
  EXPECT_EQ(DifferenceAfter([mine] {
              cpu_set_t one = mine;
              for (int i = 0; i < CPU_SETSIZE; ++i) {
                if (!CPU_ISSET(i, &one)) continue;
                CPU_CLR(i, &one);
                break;
              }
              return ::sched_setaffinity(0, sizeof one, &one) == 0;
            }),
            "the processors that it may use");
}

TEST(InheritanceTest, AnEndedProcessIsDifferent) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_NE(InheritanceDifference({child}), "");
}

}  // namespace
}  // namespace stasis::process
