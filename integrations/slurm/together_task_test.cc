#include "slurm/together_task.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace stasis::slurm {
namespace {

using ::testing::HasSubstr;

TEST(TogetherTask, TheCommonJobIsNamedAfterStepAndNode) {
  EXPECT_EQ(NodeJobName("slurm-7.0.3", 1), "slurm-7.0.n1");
}

TEST(TogetherTask, ARequeuedStepMustHaveTheSameTasks) {
  const std::vector<std::string> two = {"slurm-7.0.2", "slurm-7.0.3"};
  EXPECT_TRUE(CheckSameTasks("slurm-7.0.n1", {}, two));
  EXPECT_TRUE(CheckSameTasks("slurm-7.0.n1", two, two));
  EXPECT_FALSE(CheckSameTasks("slurm-7.0.n1", two, {"slurm-7.0.3", "slurm-7.0.2"}));
  const Status fewer = CheckSameTasks("slurm-7.0.n1", two, {"slurm-7.0.1"});
  ASSERT_FALSE(fewer);
  EXPECT_THAT(fewer.error().message, HasSubstr("1 from slurm-7.0.1 on, not 2 from slurm-7.0.2 on"));
}

TEST(TogetherTask, TheLeaderEndsWithItsOwnCodeIfAllHaveEnded) {
  EXPECT_EQ(LeaderCode(3, {0, 3}), 0);
  EXPECT_EQ(LeaderCode(3, {4, 3}), 4);
  EXPECT_EQ(LeaderCode(75, {0, std::nullopt}), 75);
  EXPECT_EQ(LeaderCode(75, {std::nullopt, 3}), 75);
  EXPECT_EQ(LeaderCode(1, {}), 1);
}

// Runs the launcher of a task in a child process that has already got SIGTERM, and returns its exit
// code.
int RunEndedTask(const std::string& state, int local) {
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::setenv("STASIS_STATE_DIR", state.c_str(), 1);
    sigset_t set;
    sigfillset(&set);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    ::raise(SIGTERM);
    TaskOptions options;
    options.job = "slurm-7.0." + std::to_string(local);
    options.place = {local, 2, 0};
    options.program = {"true"};
    ::_exit(RunTogetherTask(options).value_or(99));
  }
  int status = -1;
  ::waitpid(launcher, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The files have the task's environment.
TEST(TogetherTask, ATaskThatIsEndedBeforeTheStartLeavesNoFiles) {
  const std::string state =
      ::testing::TempDir() + "together_task_test" + std::to_string(::getpid());
  for (const int local : {0, 1}) {
    EXPECT_EQ(RunEndedTask(state, local), 75) << local;
    EXPECT_THAT(ListDir(state + "/slurm").value(), ::testing::IsEmpty()) << local;
  }
  std::filesystem::remove_all(state);
}

}  // namespace
}  // namespace stasis::slurm
