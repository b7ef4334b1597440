#include "slurm/together_root.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "base/deadline.h"
#include "base/file.h"
#include "slurm/node_files.h"
#include "slurm/task_program.h"

namespace stasis::slurm {
namespace {

class TogetherRootTest : public ::testing::Test {
 protected:
  TogetherRootTest() {
    std::filesystem::create_directory(folder_);
    EXPECT_TRUE(node_.BeginRun(0));
  }
  ~TogetherRootTest() override {
    if (root_ > 0) {
      ::kill(root_, SIGKILL);
      ::waitpid(root_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  std::string Task(size_t local) const { return folder_ + "/slurm-7.0." + std::to_string(local); }

  // Starts the root process with a shell script for each task.
  void Start(const std::vector<std::string>& scripts) {
    std::vector<std::string> words = {"--together", node_.path()};
    for (size_t i = 0; i < scripts.size(); ++i) {
      TaskProgram program{{"sh", "-c", scripts[i]},
                          {"PATH=/usr/bin:/bin", "SHARED=before", "RANK=" + std::to_string(i)},
                          folder_,
                          027,
                          {},
                          i == 1};
      ASSERT_TRUE(WriteTaskProgram(StartFile(Task(i)), program));
      words.push_back(Task(i));
    }
    root_ = ::fork();
    if (root_ != 0) return;
    ::clearenv();
    for (const char* variable : {"PATH=/usr/bin:/bin", "SHARED=after", "RANK=0", "AGENT=1"}) {
      ::putenv(const_cast<char*>(variable));
    }
    ::_exit(RunTogether(words));
  }
  int Await() {
    int status = -1;
    ::waitpid(root_, &status, 0);
    root_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static void Until(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::In(std::chrono::seconds(60));
    while (!condition()) {
      ASSERT_FALSE(deadline.passed());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::string Output(size_t local) const { return ReadFile(OutputFile(Task(local))).value_or(""); }
  void AwaitOutput(size_t local, const std::string& text) const {
    Until([&] { return Output(local).find(text) != std::string::npos; });
  }

  const std::string folder_ =
      ::testing::TempDir() + "together_root_test" + std::to_string(::getpid());
  NodeFiles node_{folder_ + "/slurm-7.0.n0"};
  pid_t root_ = 0;
};

TEST_F(TogetherRootTest, EachProgramHasItsOwnEnvironmentAndOutput) {
  const std::string script = "echo $RANK $SHARED $AGENT $(pwd) $(umask); echo error >&2";
  Start({script, script});
  EXPECT_EQ(Await(), 0);
  const std::string after = " after 1 " + folder_ + " 0027\n";
  EXPECT_EQ(Output(0), "0" + after);
  EXPECT_EQ(ReadFile(ErrorsFile(Task(0))).value_or(""), "error\n");
  EXPECT_EQ(Output(1), "1" + after + "error\n");
  EXPECT_EQ(ReadCode(Task(0)), 0);
  EXPECT_EQ(ReadCode(Task(1)), 0);
}

TEST_F(TogetherRootTest, TheFirstFailureIsItsExitCode) {
  Start({"while [ ! -e slurm-7.0.2.code ]; do sleep 0.01; done; exit 4", "true",
         "while [ ! -e slurm-7.0.1.code ]; do sleep 0.01; done; kill -KILL $$"});
  EXPECT_EQ(Await(), 137);
  EXPECT_EQ(ReadCode(Task(0)), 4);
  EXPECT_EQ(ReadCode(Task(1)), 0);
  EXPECT_EQ(ReadCode(Task(2)), 137);
}

TEST_F(TogetherRootTest, AMissingProgramIsReportedOnItsErrorOutput) {
  Start({"exec no-such-program", "true"});
  EXPECT_EQ(Await(), 127);
  EXPECT_NE(ReadFile(ErrorsFile(Task(0))).value_or(""), "");
}

TEST_F(TogetherRootTest, ADamagedDescriptionStartsNothing) {
  ASSERT_TRUE(ReplaceFile(StartFile(Task(5)), "damaged"));
  EXPECT_EQ(RunTogether({"--together", node_.path(), Task(5)}), 1);
  EXPECT_FALSE(PathExists(OutputFile(Task(5))));
  EXPECT_EQ(RunTogether({"--errors", "x", "--", "y"}), -1);
}

const std::string kTrap =
    "trap 'echo usr1' USR1; trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.02; "
    "done";

TEST_F(TogetherRootTest, SignalsAreDelivered) {
  Start({kTrap, kTrap});
  AwaitOutput(0, "ready");
  AwaitOutput(1, "ready");
  Until([&] { return node_.IsSynced(); });
  ASSERT_TRUE(node_.PutSignal({1, SIGUSR1}));
  ::kill(root_, SIGUSR1);
  AwaitOutput(1, "usr1");
  EXPECT_EQ(Output(0).find("usr1"), std::string::npos);
  ::kill(root_, SIGTERM);
  EXPECT_EQ(Await(), 0);
  EXPECT_NE(Output(0).find("term"), std::string::npos);
  EXPECT_NE(Output(1).find("term"), std::string::npos);
}

// As after a restore on another node, where the task has other CPUs.
TEST_F(TogetherRootTest, ANewRunBringsNewCpus) {
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof own, &own), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &own)) --last;
  Start({"sleep 1000 & echo $$ $!; wait", "true"});
  AwaitOutput(0, "\n");
  const std::string pids = Output(0);
  const int parent = std::stoi(pids), child = std::stoi(pids.substr(pids.find(' ')));
  auto program = ReadTaskProgram(StartFile(Task(0)));
  ASSERT_TRUE(program);
  program->cpus = {last};
  ASSERT_TRUE(WriteTaskProgram(StartFile(Task(0)), *program));
  Until([&] { return node_.IsSynced(); });
  ASSERT_TRUE(node_.BeginRun(1));
  ::kill(root_, SIGUSR1);
  Until([&] { return node_.IsSynced(); });
  for (const int pid : {parent, child}) {
    cpu_set_t now;
    ASSERT_EQ(::sched_getaffinity(pid, sizeof now, &now), 0);
    EXPECT_EQ(CPU_COUNT(&now), 1);
    EXPECT_TRUE(CPU_ISSET(last, &now));
  }
  ::kill(child, SIGKILL);
  ::kill(parent, SIGKILL);
  EXPECT_EQ(Await(), 137);
}

// As after a restore: a later code file is wrong, one of the image's time is missing, and signals
// were not announced.
TEST_F(TogetherRootTest, ANewRunIsNoticed) {
  Start({kTrap, "exit 3"});
  AwaitOutput(0, "ready");
  Until([&] { return ReadCode(Task(1)) == 3; });
  Until([&] { return node_.IsSynced(); });
  ASSERT_TRUE(WriteCode(Task(0), 9));
  ASSERT_TRUE(RemoveFile(CodeFile(Task(1))));
  ASSERT_TRUE(node_.BeginRun(1));
  ASSERT_TRUE(node_.PutSignal({0, SIGUSR1}));
  ::kill(root_, SIGUSR1);
  AwaitOutput(0, "usr1");
  EXPECT_TRUE(node_.IsSynced());
  EXPECT_EQ(ReadCode(Task(0)), std::nullopt);
  EXPECT_EQ(ReadCode(Task(1)), 3);
  ::kill(root_, SIGTERM);
  EXPECT_EQ(Await(), 3);
}

// As on a full disk.
TEST_F(TogetherRootTest, ACodeThatCouldNotBeWrittenIsWrittenLater) {
  ASSERT_TRUE(MakeDirs(CodeFile(Task(1))));
  Start({kTrap, "echo $$; exit 3"});
  AwaitOutput(0, "ready");
  AwaitOutput(1, "\n");
  const int pid = std::stoi(Output(1));
  Until([&] { return ::kill(pid, 0) != 0; });
  ::kill(root_, SIGUSR1);
  AwaitOutput(0, "");
  ASSERT_TRUE(RemoveTree(CodeFile(Task(1))));
  ::kill(root_, SIGUSR1);
  Until([&] { return ReadCode(Task(1)) == 3; });
  ::kill(root_, SIGTERM);
  EXPECT_EQ(Await(), 3);
}

}  // namespace
}  // namespace stasis::slurm
