// Adoption of running programs as jobs.
#include "jobs/manage.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <thread>

#include "jobs/database.h"
#include "jobs/locks.h"
#include "jobs/record.h"
#include "jobs/test_jobs.h"
#include "shim/shim_protocol.h"

namespace stasis::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ManageTest : public JobsTest {
 protected:
  // Starts a shell that first writes to `ready_`, then runs `script`. Returns after that write.
  process::ProcessId Start(const std::string& script) {
    pid_t pid = ::fork();
    if (pid == 0) {
      ::setsid();
      const std::string text = "echo > " + ready_.path() + "; " + script;
      ::execl("/bin/sh", "sh", "-c", text.c_str(), nullptr);
      ::_exit(127);
    }
    ready_.Read();
    return process::ReadStat({pid})->id;
  }
  std::string Pause() { return "read x < " + go_.path() + "; :"; }
  process::ProcessId StartPaused() { return Start(Pause()); }
  Result<Job> Adopt(process::HostPid pid, const std::string& id = "a", uint64_t most = 0) {
    return Manage(store, {pid, id, most});
  }
  // Kills the process but does not reap it.
  static void KillWithoutReaping(const process::ProcessId& id) {
    ::kill(id.pid.value, SIGKILL);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(id.pid.value), &info, WEXITED | WNOWAIT);
  }
  static void Reap(const process::ProcessId& id) { ::waitpid(id.pid.value, nullptr, 0); }

  Fifo ready_{folder.path() + "/ready"}, go_{folder.path() + "/go"};
};

#define EXPECT_REFUSED(result, exit_code, words)                \
  do {                                                          \
    auto refused_ = (result);                                   \
    ASSERT_FALSE(refused_);                                     \
    EXPECT_EQ(ExitCode(refused_.error()), exit_code);           \
    EXPECT_THAT(refused_.error().ToString(), HasSubstr(words)); \
  } while (0)

TEST_F(ManageTest, RunningProgramIsAJobWithoutAShim) {
  const process::ProcessId program = StartPaused();
  auto managed = Adopt(program.pid);
  ASSERT_TRUE(managed) << managed.error().ToString();
  EXPECT_EQ(managed->id, "a");
  Job job = Look("a");
  EXPECT_EQ(job.state, State::kRunning);
  EXPECT_FALSE(job.has_shim);
  EXPECT_TRUE(IsAdopted(job));
  ASSERT_TRUE(job.processes);
  EXPECT_EQ(job.processes->root, program);
  EXPECT_EQ(job.processes->shim, process::ProcessId());
  EXPECT_EQ(job.processes->log, FileId());
  EXPECT_THAT(job.argv, ElementsAre("sh", "-c", HasSubstr(go_.path())));
  EXPECT_EQ(job.cwd, *ReadLink("/proc/self/cwd"));
  EXPECT_EQ(job.agent, "");
  auto target = store.ResolveTarget("a");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->root, program);
  auto by_number = store.ResolveTarget(ToString(program.pid));
  ASSERT_TRUE(by_number && by_number->job);
  EXPECT_EQ(by_number->job->id, "a");
  EXPECT_EQ(ExitCode(store.Delete("a").error()), 7);
  EXPECT_REFUSED(CheckHasOutput(job, "attach to"), 7, "has neither its log nor its terminal");
}

TEST_F(ManageTest, EndOfAnAdoptedJobIsUnknown) {
  const process::ProcessId program = StartPaused();
  ASSERT_TRUE(Adopt(program.pid));
  // Waiting ends even if the parent does not reap the process.
  std::thread killer([&] { KillWithoutReaping(program); });
  Job job = End("a");
  killer.join();
  EXPECT_EQ(job.state, State::kLost);
  EXPECT_FALSE(job.ending);
  Reap(program);
  EXPECT_EQ(Look("a").state, State::kLost);
  EXPECT_TRUE(store.Delete("a"));
  EXPECT_FALSE(PathExists(store.Folder("a")));
}

TEST_F(ManageTest, DumpOfAnAdoptedJobIsRecorded) {
  const process::ProcessId program = StartPaused();
  ASSERT_TRUE(Adopt(program.pid));
  ASSERT_TRUE(store.MarkDumped("a", program, "/images/a"));
  ::kill(program.pid.value, SIGKILL);
  Job job = End("a");
  EXPECT_EQ(job.state, State::kDumped);
  EXPECT_EQ(job.dumped_image, "/images/a");
}

TEST_F(ManageTest, AnotherProcessWithItsPidIsNotTheJob) {
  const process::ProcessId program = StartPaused();
  ASSERT_TRUE(Adopt(program.pid));
  // Simulates a reused pid.
  auto file = ReadFile(store.Folder("a") + "/" + shim::kProcessFile);
  ASSERT_TRUE(file);
  auto processes = DecodeProcesses(*file);
  ASSERT_TRUE(processes);
  processes->root.start_time -= 1;
  ASSERT_TRUE(
      WriteFileDurably(store.Folder("a") + "/" + shim::kProcessFile, EncodeProcesses(*processes)));
  EXPECT_EQ(Look("a").state, State::kLost);
  auto other = store.ResolveTarget(ToString(program.pid));
  ASSERT_TRUE(other);
  EXPECT_FALSE(other->job);
  EXPECT_TRUE(Adopt(program.pid, "b"));
  EXPECT_EQ(Look("b").state, State::kRunning);
  // The job also counts as lost after a reboot.
  processes->root = program;
  processes->boot_id = "another";
  ASSERT_TRUE(
      WriteFileDurably(store.Folder("b") + "/" + shim::kProcessFile, EncodeProcesses(*processes)));
  EXPECT_EQ(Look("b").state, State::kLost);
}

TEST_F(ManageTest, AdoptedJobSurvivesASweepAndTheLossOfItsFile) {
  const process::ProcessId program = StartPaused();
  ASSERT_TRUE(Adopt(program.pid));
  Run("other", "exit 0");  // sweeps leftovers of killed creators
  End("other");
  EXPECT_EQ(Look("a").state, State::kRunning);
  EXPECT_EQ(Look("a").processes->root, program);
  ASSERT_EQ(::unlink((store.Folder("a") + "/" + shim::kProcessFile).c_str()), 0);
  EXPECT_EQ(Look("a").state, State::kRunning);
}

TEST_F(ManageTest, ProcessOfAJobIsRejected) {
  StartedJob started = Run("job", "sh -c 'echo > " + ready_.path() + "; " + Pause() + "' & wait");
  ready_.Read();
  auto tree = process::ReadTree(started.root.pid);
  ASSERT_TRUE(tree);
  ASSERT_EQ(tree->members.size(), 2u);
  EXPECT_REFUSED(Adopt(started.root.pid), 7, "is in job job already");
  EXPECT_REFUSED(Adopt(tree->members[1].id.pid), 7, "is in job job already");
  EXPECT_REFUSED(Adopt(started.shim.pid), 5, "is a Stasis program");
}

TEST_F(ManageTest, TreeThatContainsAJobIsRejected) {
  // The child is a job, so its parent cannot become one.
  const process::ProcessId parent = Start("sh -c '" + Pause() + "' & wait");
  process::HostPid child;
  while (child.value == 0) {
    auto tree = process::ReadTree(parent.pid);
    ASSERT_TRUE(tree);
    if (tree->members.size() > 1) child = tree->members[1].id.pid;
  }
  ASSERT_TRUE(Adopt(child, "child"));
  EXPECT_REFUSED(Adopt(parent.pid), 7, "is in job child already");
  EXPECT_REFUSED(Adopt(child), 7, "is in job child already");
}

TEST_F(ManageTest, JobOfAnotherStoreIsRejected) {
  StartedJob started = Run("job", "echo > " + ready_.path() + "; " + Pause());
  ready_.Read();
  ASSERT_TRUE(MakeDirs(folder.path() + "/others"));
  auto refused = Manage(Store(folder.path() + "/others"), {started.root.pid, "a", 0});
  EXPECT_REFUSED(refused, 7, "whose shim is process " + ToString(started.shim.pid));
}

TEST_F(ManageTest, ProcessThatCannotBecomeAJobIsRejected) {
  EXPECT_REFUSED(Adopt({1}), 5, "the machine's init");
  EXPECT_REFUSED(Adopt({::getpid()}), 5, "is this command itself");
  // In a container, the parent of this process may be the container's init process.
  if (::getppid() > 1) {
    EXPECT_REFUSED(Adopt({::getppid()}), 5, "is an ancestor of this command");
  }
  EXPECT_REFUSED(Adopt({4194304}), 3, "there is no process 4194304");

  std::thread thread([&] {
    EXPECT_REFUSED(Adopt({static_cast<pid_t>(::syscall(SYS_gettid))}), 2, "is a thread");
  });
  thread.join();

  const process::ProcessId zombie = StartPaused();
  KillWithoutReaping(zombie);
  EXPECT_REFUSED(Adopt(zombie.pid), 3, "has ended, but its parent has not reaped it");
  Reap(zombie);

  auto kernel = process::ReadStat({2});
  if (kernel && kernel->kernel_thread) EXPECT_REFUSED(Adopt({2}), 5, "is a kernel thread");
  EXPECT_TRUE(store.List()->empty());
}

TEST_F(ManageTest, AnotherUsersProgramIsRejected) {
  if (::geteuid() != 0) GTEST_SKIP() << "changing the user needs root";
  const process::ProcessId roots = StartPaused();
  ::chmod(folder.path().c_str(), 0711);
  const std::string own = folder.path() + "/own";
  ASSERT_TRUE(MakeDirs(own));
  ASSERT_EQ(::chown(own.c_str(), 4001, 4001), 0);
  pid_t user = ::fork();
  if (user == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(4001, 4001, 4001) != 0 ||
        ::setresuid(4001, 4001, 4001) != 0) {
      ::_exit(99);
    }
    auto refused = Manage(Store(own), {roots.pid, "a", 0});
    ::_exit(refused ? 0 : ExitCode(refused.error()));
  }
  int status = 0;
  ::waitpid(user, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 4);
}

TEST_F(ManageTest, NamesAndLimitsAreCheckedAsForRun) {
  const process::ProcessId program = StartPaused();
  EXPECT_REFUSED(Adopt(program.pid, "4711"), 2, "cannot name a job");
  Run("taken", "exit 0");
  End("taken");
  EXPECT_REFUSED(Adopt(program.pid, "taken"), 7, "there is a job taken already");
  EXPECT_REFUSED(Adopt(program.pid, "a", 1), 1, "limits.jobs");
  auto made_up = Adopt(program.pid, "", 2);
  ASSERT_TRUE(made_up) << made_up.error().ToString();
  EXPECT_TRUE(IsValidId(made_up->id));
}

TEST_F(ManageTest, OneOfSeveralConcurrentCallersSucceeds) {
  const process::ProcessId program = StartPaused();
  constexpr int kCallers = 8;
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  std::vector<pid_t> callers;
  for (int i = 0; i < kCallers; ++i) {
    pid_t pid = ::fork();
    if (pid == 0) {
      ::close(gate[1]);
      char c;
      (void)!::read(gate[0], &c, 1);  // all start at once, when the last gate closes
      auto managed = Adopt(program.pid, "job" + std::to_string(i));
      if (managed) ::_exit(0);
      ::_exit(managed.error().code == Code::kAlreadyExists ? 1 : 2);
    }
    callers.push_back(pid);
  }
  ::close(gate[0]);
  ::close(gate[1]);
  int won = 0, refused = 0;
  for (pid_t pid : callers) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    won += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    refused += WIFEXITED(status) && WEXITSTATUS(status) == 1;
  }
  EXPECT_EQ(won, 1);
  EXPECT_EQ(refused, kCallers - 1);
  EXPECT_EQ(store.List()->size(), 1u);
}

TEST_F(ManageTest, HeldJobCanNeitherBeHeldNorDeletedByAnother) {
  Run("a", "exit 3");
  End("a");
  {
    auto held = store.Hold("a");
    ASSERT_TRUE(held) << held.error().ToString();
    EXPECT_FALSE(held->is_new());
    EXPECT_EQ(held->job().state, State::kExited);
    EXPECT_REFUSED(store.Hold("a"), 7, "job a is busy");
    EXPECT_REFUSED(store.Delete("a"), 7, "job a is busy");
    EXPECT_TRUE(held->Discard());
    EXPECT_EQ(Look("a").state, State::kExited);  // it existed before
    EXPECT_TRUE(store.Hold("a"));
  }
  EXPECT_REFUSED(store.Hold("missing"), 3, "there is no job missing");
  EXPECT_TRUE(store.Delete("a"));
}

TEST_F(ManageTest, JobWhoseRestoreIsBeingUndoneIsNotDeleted) {
  StartedJob started = Run("a", "exit 3");
  End("a");
  AwaitGone(started.shim);
  // Simulates the shim of a killed restore.
  auto shim = LockFile(store.Folder("a") + "/" + shim::kShimLock, LOCK_EX);
  ASSERT_TRUE(shim);
  EXPECT_REFUSED(store.Delete("a"), 7, "job a is busy");
  shim->Reset();
  EXPECT_TRUE(store.Delete("a"));
}

}  // namespace
}  // namespace stasis::jobs
