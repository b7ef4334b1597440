// Runs real programs under the real shim.
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>

#include "jobs/test_jobs.h"

namespace stasis::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(JobsTest, ExitCodeIsRecorded) {
  StartedJob started = Run("a", "exit 7");
  Job job = End("a");
  EXPECT_EQ(job.state, State::kExited);
  ASSERT_TRUE(job.ending);
  EXPECT_EQ(job.ending->code, 7);
  EXPECT_EQ(job.ending->signal, 0);
  EXPECT_EQ(job.processes->root, started.root);
  EXPECT_EQ(job.processes->shim, started.shim);
  AwaitGone(started.shim);
  EXPECT_THAT(FilesOf("a"), ElementsAre("exit.json", "lock", "log", "process.json", "shim.lock"));
}

TEST_F(JobsTest, SignalIsRecordedAs128AndItsNumber) {
  Run("a", "kill -TERM $$");
  Job job = End("a");
  ASSERT_TRUE(job.ending);
  EXPECT_EQ(job.ending->signal, SIGTERM);
  EXPECT_EQ(job.ending->code, 128 + SIGTERM);
}

TEST_F(JobsTest, EndOfAJobWithARemovedFolderIsNotRecordedForANewJobOfThatName) {
  Fifo first(folder.path() + "/first"), second(folder.path() + "/second");
  StartedJob removed = Run("a", "read x < " + first.path());
  std::filesystem::remove_all(store.Folder("a"));
  // The database may still contain the job's name.
  (void)store.Delete("a");
  Run("a", "read x < " + second.path() + "; exit 7");
  first.Write();
  AwaitGone(removed.shim);
  EXPECT_FALSE(PathExists(store.Folder("a") + "/exit.json"));
  second.Write();
  Job job = End("a");
  ASSERT_TRUE(job.ending);
  EXPECT_EQ(job.ending->code, 7);
}

TEST_F(JobsTest, OutputIsCompleteAndInTheOrderOfTheWrites) {
  // Write a megabyte, with lines alternating between the two streams.
  Run("a",
      "i=0; while [ $i -lt 10000 ]; do"
      " echo \"out $i ........................................\";"
      " echo \"err $i ........................................\" >&2; i=$((i+1)); done");
  End("a");
  std::string expected;
  for (int i = 0; i < 10000; ++i) {
    for (const char* stream : {"out ", "err "}) {
      expected += stream + std::to_string(i) + " ........................................\n";
    }
  }
  EXPECT_GT(expected.size(), 1000000u - 100000u);
  EXPECT_TRUE(LogOf("a") == expected) << "the log differs";
}

TEST_F(JobsTest, JobHasThreeDescriptorsAndItsOwnSession) {
  int leak = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  StartedJob started = Run("a", "echo > " + ready.path() + "; read x < " + go.path());
  ready.Read();
  auto stat = process::ReadStat(started.root.pid);
  auto files = process::ReadOpenFiles(started.root.pid);
  auto shim = process::ReadStat(started.shim.pid);
  go.Write();
  ::close(leak);
  ASSERT_TRUE(stat && files && shim);
  EXPECT_EQ(stat->session, started.root.pid.value);
  EXPECT_EQ(stat->process_group, started.root.pid.value);
  EXPECT_EQ(stat->tty, 0);
  EXPECT_EQ(stat->parent, started.shim.pid);
  EXPECT_EQ(shim->session, started.shim.pid.value);
  // The shell may be closing one of the test's pipes.
  std::string store_log = store.Folder("a") + "/log";
  std::vector<std::string> targets;
  for (const auto& file : *files) {
    if (file.target == store_log || !file.target.starts_with(folder.path())) {
      targets.push_back(file.target);
    }
  }
  ASSERT_EQ(targets.size(), 3u) << ::testing::PrintToString(targets);
  EXPECT_EQ(targets[0], "/dev/null");
  EXPECT_EQ(targets[1], store_log);
  EXPECT_EQ(targets[2], store_log);
  End("a");
}

TEST_F(JobsTest, JobInheritsEnvironmentDirectoryUmaskAndLimitsButNotSignalSettings) {
  mode_t old = ::umask(027);
  char* cwd = ::getcwd(nullptr, 0);
  ASSERT_EQ(::chdir(folder.path().c_str()), 0);
  ::setenv("STASIS_TEST_WORD", "seen", 1);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  rlimit lower{200, files.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &lower);
  ::signal(SIGHUP, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);

  Run("a",
      "echo $STASIS_TEST_WORD; pwd; umask; ulimit -n; grep -E '^Sig(Blk|Ign)' /proc/self/status");

  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::signal(SIGHUP, SIG_DFL);
  ::setrlimit(RLIMIT_NOFILE, &files);
  ::unsetenv("STASIS_TEST_WORD");
  (void)!::chdir(cwd);
  ::free(cwd);
  ::umask(old);
  End("a");
  EXPECT_EQ(LogOf("a"), "seen\n" + folder.path() +
                            "\n0027\n200\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(JobsTest, MissingProgramLeavesNothing) {
  auto started = TryRun("a", {"no-such-program-anywhere"});
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, Code::kNotFound);
  EXPECT_THAT(started.error().ToString(), HasSubstr("no-such-program-anywhere"));
  EXPECT_FALSE(PathExists(store.Folder("a")));
  EXPECT_TRUE(store.List()->empty());
}

TEST_F(JobsTest, ProgramThatCannotBeRunHasAReasonAndLeavesNoLog) {
  std::string program = folder.path() + "/program", log = folder.path() + "/out.log";
  ASSERT_TRUE(WriteFileDurably(program, "#!/no/such/interpreter\n"));
  auto denied = TryRun("a", {program}, log);
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code, Code::kPermissionDenied);
  EXPECT_FALSE(PathExists(log));

  ::chmod(program.c_str(), 0700);
  auto no_interpreter = TryRun("a", {program}, log);
  ASSERT_FALSE(no_interpreter);
  EXPECT_THAT(no_interpreter.error().hint, HasSubstr("interpreter"));
  EXPECT_FALSE(PathExists(log));
}

TEST_F(JobsTest, LogThatCannotBeOpenedIsAUsageErrorAndNothingRuns) {
  auto started = TryRun("a", {"/bin/true"}, "/no/such/folder/log");
  ASSERT_FALSE(started);
  EXPECT_EQ(ExitCode(started.error()), 2);
  EXPECT_TRUE(store.List()->empty());
}

TEST_F(JobsTest, GrandchildInItsOwnSessionKeepsTheShimAndTheOutput) {
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  StartedJob started = Run("a", "(setsid sh -c 'echo $$ > " + ready.path() + "; read x < " +
                                    go.path() + "; echo late') & exit 3");
  pid_t daemon = std::stoi(ready.Read());
  Job job = End("a");
  EXPECT_EQ(job.ending->code, 3);
  EXPECT_TRUE(job.has_shim);
  EXPECT_THAT(BackgroundProcesses(job), ElementsAre(process::HostPid{daemon}));
  auto refused = store.Delete("a");
  ASSERT_FALSE(refused);
  EXPECT_EQ(ExitCode(refused.error()), 7);
  EXPECT_THAT(refused.error().message, HasSubstr("process " + std::to_string(daemon) + " (sh)"));
  auto target = store.ResolveTarget(std::to_string(daemon));
  ASSERT_TRUE(target && target->job);
  EXPECT_EQ(target->job->id, "a");

  go.Write();
  AwaitGone(started.shim);
  EXPECT_EQ(LogOf("a"), "late\n");
  EXPECT_TRUE(store.Delete("a"));
  EXPECT_FALSE(PathExists(store.Folder("a")));
}

TEST_F(JobsTest, DeleteWaitsForProcessesThatAreAboutToEnd) {
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  const std::string child = "sh -c 'echo > " + ready.path() + "; read x < " + go.path() + "; true'";
  StartedJob started = Run("a", "(setsid " + child + ") & exit 0");
  ready.Read();
  Job job = End("a");
  EXPECT_EQ(BackgroundProcesses(job).size(), 1u);
  go.Write();
  auto deleted = store.Delete("a");
  EXPECT_TRUE(deleted) << deleted.error().ToString();
  AwaitGone(started.shim);
}

TEST_F(JobsTest, OrphansAreReaped) {
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  // A hundred grandchildren end under the shim while the root lives.
  StartedJob started = Run("a",
                           "i=0; while [ $i -lt 100 ]; do (true &); i=$((i+1)); done;"
                           " (sh -c 'echo $PPID >/dev/null; exit 0' &); echo > " +
                               ready.path() + "; read x < " + go.path());
  ready.Read();
  // Waits until the shim has reaped all orphans; only the shim and the root are left.
  size_t left;
  do {
    auto tree = process::ReadTree(started.shim.pid);
    ASSERT_TRUE(tree);
    left = tree->members.size();
    ::sched_yield();
  } while (left > 2);
  go.Write();
  End("a");
}

TEST_F(JobsTest, KilledShimLeavesTheJobRunningAndItsOutputIsKept) {
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  StartedJob started = Run("a", "echo before; echo > " + ready.path() + "; read x < " + go.path() +
                                    "; echo after; (echo child) || exit 1; echo > " + ready.path() +
                                    "; read x < " + go.path());
  ready.Read();
  ::kill(started.shim.pid.value, SIGKILL);
  AwaitGone(started.shim);
  Job job = Look("a");
  EXPECT_EQ(job.state, State::kRunning);
  EXPECT_FALSE(job.has_shim);
  go.Write();
  ready.Read();
  EXPECT_EQ(LogOf("a"), "before\nafter\nchild\n");
  EXPECT_EQ(Look("a").state, State::kRunning);
  go.Write();
  AwaitGone(started.root);  // adopted by this test
  EXPECT_EQ(End("a").state, State::kLost);
  EXPECT_TRUE(store.Delete("a"));
}

TEST_F(JobsTest, SignalsDoNotEndTheShim) {
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  StartedJob started = Run("a", "echo > " + ready.path() + "; read x < " + go.path() + "; exit 4");
  ready.Read();
  for (int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGALRM}) {
    ::kill(started.shim.pid.value, signal);
  }
  go.Write();
  EXPECT_EQ(End("a").ending->code, 4);
}

TEST_F(JobsTest, ProgramGetsTheErrorOfAFullDiskAndItsExitIsStillRecorded) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small file system needs root";
  std::string disk = folder.path() + "/jobs";  // also contains the job's records
  ASSERT_EQ(::mount("none", disk.c_str(), "tmpfs", 0, "size=256k,mode=0700"), 0) << strerror(errno);
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  StartedJob started = Run("a", "head -c 1000000 /dev/zero 2>/dev/null; echo $? > " + ready.path() +
                                    "; read x < " + go.path() + "; echo after; exit 5");
  EXPECT_EQ(ready.Read(), "1") << "the program must get the error, as with `>` of a shell";
  // Free space on the disk again.
  std::string log = store.Folder("a") + "/log";
  ASSERT_EQ(::truncate(log.c_str(), 0), 0);
  go.Write();
  Job job = End("a");
  std::string text = LogOf("a");
  Run("b", "head -c 1000000 /dev/zero; exit 6");  // and the disk is full at the end
  Job full = End("b");
  AwaitGone(started.shim);
  AwaitGone(full.processes->shim);
  EXPECT_EQ(::umount(disk.c_str()), 0) << strerror(errno);
  ASSERT_TRUE(job.ending && full.ending);
  EXPECT_EQ(job.ending->code, 5);
  EXPECT_EQ(text, "after\n");
  EXPECT_EQ(full.ending->code, 6);
}

TEST_F(JobsTest, ProgramGetsTheErrorOfALogAtItsSizeLimit) {
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  rlimit small{64 << 10, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  Run("a", "head -c 200000 /dev/zero; exit $?");
  ::setrlimit(RLIMIT_FSIZE, &old);
  Job job = End("a");
  ASSERT_TRUE(job.ending);
  EXPECT_EQ(job.ending->code, 128 + SIGXFSZ);
  EXPECT_EQ(LogOf("a").size(), 64u << 10);
}

TEST_F(JobsTest, PipeIsRejectedAsALog) {
  Fifo fifo(folder.path() + "/fifo");
  auto started = TryRun("a", {"/bin/true"}, fifo.path());
  ASSERT_FALSE(started);
  EXPECT_EQ(ExitCode(started.error()), 2);
  EXPECT_THAT(started.error().ToString(), HasSubstr("a pipe"));
  EXPECT_TRUE(store.List()->empty());
}

TEST_F(JobsTest, OutputByReopenedAndInheritedDescriptorsStaysInOrder) {
  Run("a",
      "echo 1; (exec >>/dev/stdout; echo 2); exec 1>&- 1>>/dev/stderr; echo 3; exec 2>&1; "
      "echo 4 >&2; sh -c 'echo 5; (echo 6) & wait'; echo 7");
  End("a");
  EXPECT_EQ(LogOf("a"), "1\n2\n3\n4\n5\n6\n7\n");
}

TEST_F(JobsTest, MarkOfADumpAppliesOnlyToAKilledTree) {
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  std::string script = "echo > " + ready.path() + "; read x < " + go.path() + "; exit 2";
  StartedJob killed = Run("killed", script);
  ready.Read();
  StartedJob ended = Run("ended", script);
  ready.Read();
  StartedJob other = Run("other", script);
  ready.Read();
  ASSERT_TRUE(store.MarkDumped("killed", killed.root, "/images/killed"));
  ASSERT_TRUE(store.MarkDumped("ended", ended.root, "/images/ended"));
  ASSERT_TRUE(store.MarkDumped("other", ended.root, "/images/ended"));
  EXPECT_EQ(Look("killed").state, State::kRunning);
  ::kill(killed.root.pid.value, SIGKILL);
  ::kill(other.root.pid.value, SIGKILL);
  Job dumped = End("killed");
  EXPECT_EQ(dumped.state, State::kDumped);
  EXPECT_EQ(dumped.ending->code, 75);
  EXPECT_EQ(dumped.dumped_image, "/images/killed");
  EXPECT_EQ(End("other").ending->code, 128 + SIGKILL);
  go.Write();
  EXPECT_EQ(End("ended").ending->code, 2);
}

}  // namespace
}  // namespace stasis::jobs
