#include "shim/descendants.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/tree.h"

namespace stasis::shim {
namespace {

// Runs `grow` in a subreaper, which then kills all descendants. Returns 0 if no descendant is left,
// else 1.
template <class F>
int EndAll(F grow) {
  pid_t reaper = ::fork();
  if (reaper == 0) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t criu = grow();
    KillDescendants(criu);
    auto tree = process::ReadTree({::getpid()});
    ::_exit(tree && tree->members.size() == 1 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(reaper, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

pid_t Fork(void (*body)()) {
  pid_t pid = ::fork();
  if (pid == 0) {
    body();
    for (;;) ::pause();
  }
  return pid;
}

TEST(KillDescendantsTest, AcceptsNoDescendants) {
  EXPECT_EQ(EndAll([] { return 0; }), 0);
}

TEST(KillDescendantsTest, KillsDeepTreesAndStoppedProcesses) {
  EXPECT_EQ(EndAll([] {
              for (int i = 0; i < 5; ++i) {
                Fork([] {
                  Fork([] { Fork([] { ::raise(SIGSTOP); }); });
                  ::signal(SIGTERM, SIG_IGN);
                });
              }
              return 0;
            }),
            0);
}

TEST(KillDescendantsTest, KillsOrphansThatLeftTheirSession) {
  EXPECT_EQ(EndAll([] {
              pid_t parent = Fork([] {
                Fork([] {
                  ::setsid();
                  Fork([] {});
                });
                ::_exit(0);
              });
              ::waitpid(parent, nullptr, 0);
              return 0;
            }),
            0);
}

// Each process lives only long enough to fork the next one.
TEST(KillDescendantsTest, KillsAProcessThatForksAndExitsInALoop) {
  EXPECT_EQ(EndAll([] {
              Fork([] {
                for (;;) {
                  if (::fork() != 0) ::_exit(0);
                }
              });
              return 0;
            }),
            0);
}

TEST(KillDescendantsTest, KillsCriuBeforeTheProcessesThatItMakes) {
  EXPECT_EQ(EndAll([] {
              return Fork([] {
                for (int i = 0; i < 50; ++i) Fork([] {});
              });
            }),
            0);
}

}  // namespace
}  // namespace stasis::shim
