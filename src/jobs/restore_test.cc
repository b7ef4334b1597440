// Restores trees with real CRIU below the real shim. Starters are killed at various moments.
#include <gmock/gmock.h>

#include <functional>

#include "criu/client.h"
#include "criu/inside.h"
#include "criu/probe.h"
#include "criu/stdio.h"
#include "criu/terminals.h"
#include "ipc/socket.h"
#include "jobs/test_jobs.h"
#include "process/namespace.h"

namespace stasis::jobs {
namespace {

using ::testing::ElementsAre;

Deadline Patience() { return Deadline::In(std::chrono::seconds(60)); }

class RestoreTest : public JobsTest {
 protected:
  void SetUp() override {
    const char* named = std::getenv("STASIS_CRIU");
    auto criu = criu::FindCriu(named == nullptr ? "" : named);
    if (!criu) GTEST_SKIP() << criu.error().ToString();
    if (::geteuid() != 0) GTEST_SKIP() << "CRIU needs root here";
    criu_path_ = *criu;
    images_ = folder.path() + "/images";
    ASSERT_TRUE(MakeDirs(images_));
  }

  // Starts a job that answers each line written to `go_` with the next number, and exits on "end".
  void StartCounter() {
    // The loop retries a read that got end-of-file.
    Run("a", "i=0; while :; do if read x < " + go_.path() +
                 "; then if [ \"$x\" = end ]; then exit 9; fi; i=$((i+1)); echo $i; fi; done");
  }
  void CountTo(int number) {
    go_.Write();
    AwaitLog(std::to_string(number) + "\n");
  }
  // Waits until the log ends with `text`.
  void AwaitLog(const std::string& text) {
    auto watch = Watch::Start(store, "a", store.Folder("a") + "/log");
    ASSERT_TRUE(watch);
    while (!LogOf("a").ends_with(text)) ASSERT_TRUE(watch->Wait(-1, Soon())) << LogOf("a");
  }

  // Dumps the job and kills it, as an operation does.
  Status Dump() {
    STASIS_ASSIGN(Job job, store.Load("a"));
    STASIS_TRY(RemoveTree(images_));
    STASIS_TRY(MakeDirs(images_));
    STASIS_ASSIGN(auto tree, process::ReadTree(job.processes->root.pid));
    STASIS_ASSIGN(auto stdio, criu::PlanStdio(tree, job.processes->log));
    externals_ = stdio.externals;
    criu::DumpRequest request;
    request.pid = job.processes->root.pid;
    request.images_dir = images_;
    request.log_path = folder.path() + "/dump.log";
    stdio.ApplyTo(request.options);
    STASIS_ASSIGN(bool inside, process::IsInOtherPidNamespace(request.pid));
    STASIS_ASSIGN(criu::Session session,
                  inside ? criu::Inside::Spawn(criu_path_, request, request.pid, {}, Patience())
                         : criu::Session::Spawn(criu_path_));
    return session.Dump(
        request,
        [&](criu::Notification& notification) -> Status {
          if (notification.moment != criu::Moment::kPostDump) return {};
          STASIS_TRY(criu::DetachTerminals(images_));
          return store.MarkDumped("a", job.processes->root, images_);
        },
        Patience());
  }

  struct Restoring {
    std::optional<RestoreShim> shim;
    process::ProcessId root;
  };
  // Starts CRIU under the shim, in a new pid namespace if apart_ is set.
  Result<criu::Session> StartCriu(const criu::RestoreRequest& request,
                                  std::optional<RestoreShim>& shim) {
    RestoreSpec spec{store.Folder("a"), {store.OwnLog("a")}, {}, {}, {}};
    auto start = [&](const criu::SwrkCommand& command) -> Status {
      spec.criu_argv = command.argv;
      spec.criu_env = command.env;
      STASIS_ASSIGN(shim, RestoreShim::Start(spec, Patience()));
      return {};
    };
    if (apart_) {
      STASIS_ASSIGN(auto inside,
                    criu::Inside::Make(criu_path_, "", request.images_dir, request.log_path));
      spec.new_pidns = true;
      spec.criu_pid = kCriuPid;
      spec.criu_fds = inside.fds();
      STASIS_TRY(start(inside.command()));
      return inside.Accept(Patience());
    }
    STASIS_ASSIGN(ipc::SocketPair pair, ipc::MakeSocketPair());
    spec.criu_fds = {{criu::SwrkCommand::kSocketFd, pair.theirs.get()}};
    STASIS_TRY(start(criu::MakeSwrkCommand(criu_path_)));
    return criu::Session::OverSocket(std::move(pair.ours), shim->criu());
  }
  // Restores without the commit. `at_moment` is called for each notification of CRIU.
  Result<Restoring> Restore(const std::function<Status(criu::Moment)>& at_moment = nullptr) {
    criu::Replacements replacements;
    replacements.output.assign(std::begin(shim::kCriuOutputFds), std::end(shim::kCriuOutputFds));
    replacements.null.assign(std::begin(shim::kCriuNullFds), std::end(shim::kCriuNullFds));
    STASIS_ASSIGN(auto inherit, criu::PlanInherit(externals_, replacements));
    criu::RestoreRequest request;
    request.images_dir = images_;
    request.log_path = folder.path() + "/restore.log";
    request.inherit = inherit.inherit;
    Restoring restoring;
    STASIS_ASSIGN(criu::Session session, StartCriu(request, restoring.shim));
    if (at_moment) STASIS_TRY(at_moment(criu::Moment::kOther));
    STASIS_TRY(session.Restore(
        request,
        [&](criu::Notification& notification) -> Status {
          if (at_moment) STASIS_TRY(at_moment(notification.moment));
          if (notification.moment != criu::Moment::kPostRestore) return {};
          STASIS_ASSIGN(auto stat, process::ReadStat(notification.pid));
          restoring.root = stat.id;
          return restoring.shim->SetRoot(stat.id, Patience());
        },
        Patience()));
    STASIS_ASSIGN(int status, restoring.shim->AwaitCriuEnd(Patience()));
    EXPECT_EQ(status, 0);
    return restoring;
  }

  // This process must have no children, running or zombie.
  void ExpectNothingLeft() {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    auto tree = process::ReadTree({::getpid()});
    ASSERT_TRUE(tree);
    for (size_t i = 1; i < tree->members.size(); ++i) {
      ADD_FAILURE() << "left: " << tree->members[i].id.pid.value << " " << tree->members[i].comm;
    }
  }

  static constexpr pid_t kCriuPid = 20000;
  bool apart_ = false;
  std::string criu_path_, images_;
  std::vector<criu::ExternalFd> externals_;
  Fifo go_{folder.path() + "/go"};
};

#define ASSERT_OK(result) ASSERT_TRUE(result) << (result).error().ToString()

TEST_F(RestoreTest, DumpedJobContinuesUnderItsNewShimRepeatedly) {
  StartCounter();
  CountTo(1);
  pid_t pid = Look("a").processes->root.pid.value;
  for (int round = 0; round < 3; ++round) {
    Job before = Look("a");
    auto dumped = Dump();
    ASSERT_OK(dumped);
    Job ended = End("a");
    EXPECT_EQ(ended.state, State::kDumped);
    EXPECT_EQ(ended.ending->code, 75);
    EXPECT_EQ(ended.dumped_image, images_);
    AwaitGone(before.processes->shim);

    auto restoring = Restore();
    ASSERT_OK(restoring);
    EXPECT_EQ(Look("a").state, State::kDumped) << "the state must not change before the commit";
    auto committed = restoring->shim->Commit(Patience());
    ASSERT_OK(committed);
    Job restored = Look("a");
    EXPECT_EQ(restored.state, State::kRunning);
    EXPECT_TRUE(restored.has_shim);
    EXPECT_FALSE(restored.dumped_image);
    EXPECT_EQ(restored.processes->root.pid.value, pid);
    EXPECT_NE(restored.processes->root, before.processes->root);
    EXPECT_EQ(process::ReadStat({pid})->parent, restored.processes->shim.pid);
    CountTo(round + 2);
  }
  EXPECT_EQ(LogOf("a"), "1\n2\n3\n4\n");
  go_.Write("end\n");
  Job job = End("a");
  EXPECT_EQ(job.state, State::kExited);
  EXPECT_EQ(job.ending->code, 9);
  AwaitGone(job.processes->shim);
  EXPECT_THAT(FilesOf("a"), ElementsAre("exit.json", "lock", "log", "process.json", "shim.lock"));
  ExpectNothingLeft();
}

TEST_F(RestoreTest, JobInItsOwnPidNamespaceContinuesToo) {
  apart_ = true;
  StartCounter();
  CountTo(1);
  const pid_t pid = Look("a").processes->root.pid.value;
  for (int round = 0; round < 3; ++round) {
    process::ProcessId shim = Look("a").processes->shim;
    auto dumped = Dump();
    ASSERT_OK(dumped);
    EXPECT_EQ(End("a").state, State::kDumped);
    AwaitGone(shim);
    auto restoring = Restore();
    ASSERT_OK(restoring);
    auto committed = restoring->shim->Commit(Patience());
    ASSERT_OK(committed);
    Job restored = Look("a");
    EXPECT_EQ(restored.state, State::kRunning);
    EXPECT_TRUE(restored.has_shim);
    const process::HostPid root = restored.processes->root.pid;
    EXPECT_EQ(process::ReadStat(root)->parent, restored.processes->shim.pid);
    EXPECT_NE(root.value, pid);
    EXPECT_EQ(process::ReadInnerPid(root).value_or(0), pid);
    EXPECT_EQ(process::ReadInnerPid(restored.processes->shim.pid).value_or(0), 1);
    CountTo(round + 2);
  }
  go_.Write("end\n");
  Job job = End("a");
  EXPECT_EQ(job.state, State::kExited);
  EXPECT_EQ(job.ending->code, 9);
  AwaitGone(job.processes->shim);
  ExpectNothingLeft();
}

TEST_F(RestoreTest, KillingTheInitOfAPidNamespaceEndsTheJob) {
  apart_ = true;
  StartCounter();
  CountTo(1);
  ASSERT_TRUE(Dump());
  End("a");
  auto restoring = Restore();
  ASSERT_OK(restoring);
  ASSERT_TRUE(restoring->shim->Commit(Patience()));
  CountTo(2);
  Job job = Look("a");
  ::kill(job.processes->shim.pid.value, SIGKILL);
  AwaitGone(job.processes->shim);
  ExpectNothingLeft();
  EXPECT_EQ(Look("a").state, State::kLost);
}

TEST_F(RestoreTest, StarterKilledBeforeTheCommitLeavesNothing) {
  StartCounter();
  CountTo(1);
  process::ProcessId first = Look("a").processes->shim;
  auto dumped = Dump();
  ASSERT_OK(dumped);
  End("a");
  AwaitGone(first);

  struct Row {
    const char* when;
    criu::Moment moment;
  };
  constexpr criu::Moment kAfterCriu = criu::Moment::kPreDump;  // never occurs in a restore
  const Row kRows[] = {{"CRIU has started", criu::Moment::kOther},
                       {"before CRIU creates processes", criu::Moment::kPreRestore},
                       {"the tree exists and is stopped", criu::Moment::kPostRestore},
                       {"the tree is about to run", criu::Moment::kPreResume},
                       {"the tree runs", criu::Moment::kPostResume},
                       {"CRIU has ended", kAfterCriu}};
  for (size_t i = 0; i < 2 * std::size(kRows); ++i) {
    const Row& row = kRows[i / 2];
    apart_ = i % 2 != 0;
    SCOPED_TRACE(row.when);
    SCOPED_TRACE(apart_);
    pid_t starter = ::fork();
    ASSERT_GE(starter, 0);
    if (starter == 0) {
      auto restoring = Restore([&](criu::Moment moment) -> Status {
        if (moment == row.moment) ::kill(::getpid(), SIGKILL);
        return {};
      });
      if (restoring && row.moment == kAfterCriu) ::kill(::getpid(), SIGKILL);
      ::_exit(restoring ? 1 : 2);  // the moment did not occur
    }
    int status = 0;
    ::waitpid(starter, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << status << "\n"
                                     << ReadFile(folder.path() + "/restore.log").value_or("");
    // The shim, now a child of this process, exits when the restored tree has ended.
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ExpectNothingLeft();
    EXPECT_EQ(Look("a").state, State::kDumped);
  }

  // The failed restores did not change the job: it can still be restored.
  apart_ = false;
  auto restoring = Restore();
  ASSERT_OK(restoring);
  ASSERT_TRUE(restoring->shim->Commit(Patience()));
  CountTo(2);
  go_.Write("end\n");
  EXPECT_EQ(End("a").ending->code, 9);
}

TEST_F(RestoreTest, StarterThatExitsAfterItsCommitMessageHasCommitted) {
  StartCounter();
  CountTo(1);
  auto dumped = Dump();
  ASSERT_OK(dumped);
  End("a");
  pid_t starter = ::fork();
  if (starter == 0) {
    auto restoring = Restore();
    if (!restoring) ::_exit(2);
    // The commit is sent, but its answer is never read.
    (void)restoring->shim->Commit(Deadline::In(std::chrono::milliseconds(0)));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(starter, &status, 0);
  EXPECT_EQ(status, 0);
  auto watch = Watch::Start(store, "a");
  ASSERT_TRUE(watch);
  while (Look("a").state != State::kRunning) ASSERT_TRUE(watch->Wait(-1, Soon()));
  CountTo(2);
  go_.Write("end\n");
  EXPECT_EQ(End("a").ending->code, 9);
}

TEST_F(RestoreTest, AbortIsAcknowledgedWhenNothingIsLeft) {
  StartCounter();
  CountTo(1);
  auto dumped = Dump();
  ASSERT_OK(dumped);
  process::ProcessId first = End("a").processes->shim;
  AwaitGone(first);
  auto restoring = Restore();
  ASSERT_OK(restoring);
  ASSERT_TRUE(process::IsAlive(restoring->root));
  auto aborted = restoring->shim->Abort(Patience());
  ASSERT_OK(aborted);
  EXPECT_FALSE(process::ReadStat(restoring->root.pid));
  AwaitGone(restoring->shim->shim());
  ExpectNothingLeft();
  EXPECT_EQ(Look("a").state, State::kDumped);
}

TEST_F(RestoreTest, RootThatEndsBeforeTheCommitIsReportedAndRecorded) {
  StartCounter();
  CountTo(1);
  auto dumped = Dump();
  ASSERT_OK(dumped);
  End("a");
  auto restoring = Restore();
  ASSERT_OK(restoring);
  go_.Write("end\n");
  AwaitGone(restoring->root);
  auto committed = restoring->shim->Commit(Patience());
  ASSERT_OK(committed);
  Job job = End("a");
  EXPECT_EQ(job.state, State::kExited);
  EXPECT_EQ(job.ending->code, 9);
}

TEST_F(RestoreTest, CommitWithoutARootIsRejected) {
  Run("a", "exit 0");
  End("a");
  auto pair = ipc::MakeSocketPair();
  ASSERT_OK(pair);
  criu::SwrkCommand command = criu::MakeSwrkCommand(criu_path_);
  RestoreSpec spec{store.Folder("a"),
                   {store.OwnLog("a")},
                   command.argv,
                   command.env,
                   {{criu::SwrkCommand::kSocketFd, pair->theirs.get()}}};
  auto shim = RestoreShim::Start(spec, Patience());
  ASSERT_OK(shim);
  EXPECT_FALSE(shim->Commit(Patience()));
  EXPECT_EQ(Look("a").state, State::kExited);
  EXPECT_TRUE(shim->Abort(Patience()));
  EXPECT_EQ(Look("a").ending->code, 0);
}

TEST_F(RestoreTest, CriuThatCannotBeStartedIsAnError) {
  Run("a", "exit 0");
  End("a");
  RestoreSpec spec{store.Folder("a"), {store.OwnLog("a")}, {"/no/such/criu"}, {}, {}};
  auto shim = RestoreShim::Start(spec, Patience());
  ASSERT_FALSE(shim);
  EXPECT_EQ(shim.error().code, Code::kNotFound);
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
  ExpectNothingLeft();
  EXPECT_EQ(Look("a").ending->code, 0);
}

TEST_F(RestoreTest, CriuThatCannotBeStartedInANewPidNamespaceIsAnErrorToo) {
  Run("a", "exit 0");
  End("a");
  apart_ = true;
  criu_path_ = "/no/such/criu";
  auto restoring = Restore();
  ASSERT_FALSE(restoring);
  EXPECT_EQ(restoring.error().ToString(), "start /no/such/criu: No such file or directory");
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
  ExpectNothingLeft();
  EXPECT_EQ(Look("a").ending->code, 0);
}

}  // namespace
}  // namespace stasis::jobs
