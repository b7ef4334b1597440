#include "jobs/store.h"

#include <gmock/gmock.h>
#include <sys/file.h>

#include <thread>

#include "jobs/database.h"
#include "jobs/locks.h"
#include "jobs/record.h"
#include "jobs/test_jobs.h"
#include "process/host_name.h"

namespace stasis::jobs {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class StoreTest : public JobsTest {
 protected:
  Result<Claim> Create(const std::string& id) { return store.Create({id, {"/bin/true"}, "/", ""}); }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    auto jobs = store.List();
    for (const auto& listed : *jobs) names.push_back(listed.id);
    return names;
  }
  std::vector<std::string> Hidden() {
    std::vector<std::string> hidden;
    auto names = ListDir(folder.path() + "/jobs");
    for (const auto& name : *names) {
      if (name.starts_with(".new-") || name.starts_with(".old-")) hidden.push_back(name);
    }
    return hidden;
  }
};

TEST_F(StoreTest, CreatedJobIsListedAsStarting) {
  auto claim = Create("a");
  ASSERT_TRUE(claim) << claim.error().ToString();
  EXPECT_EQ(claim->job().log, store.Folder("a") + "/log");
  Job job = Look("a");
  EXPECT_EQ(job.state, State::kStarting);
  EXPECT_EQ(job.argv, std::vector<std::string>{"/bin/true"});
  EXPECT_GT(job.created_ms, 0);
  auto busy = store.Delete("a");
  ASSERT_FALSE(busy);
  EXPECT_EQ(ExitCode(busy.error()), 7);
}

TEST_F(StoreTest, DeletesAJobWhoseStartWasKilled) {
  { ASSERT_TRUE(Create("a")); }
  EXPECT_EQ(Look("a").state, State::kLost);
  EXPECT_TRUE(store.Delete("a"));
  EXPECT_TRUE(Names().empty());
}

TEST_F(StoreTest, GeneratedNamesAreValidAndDiffer) {
  std::vector<Claim> claims;
  for (int i = 0; i < 20; ++i) {
    auto claim = Create("");
    ASSERT_TRUE(claim);
    EXPECT_TRUE(IsValidId(claim->job().id));
    claims.push_back(std::move(*claim));
  }
  EXPECT_EQ(Names().size(), 20u);
}

TEST_F(StoreTest, TakenNameIsRejectedAndLeavesNothing) {
  auto first = Create("a");
  ASSERT_TRUE(first);
  auto second = Create("a");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kAlreadyExists);
  EXPECT_THAT(Hidden(), IsEmpty());
}

TEST_F(StoreTest, EndedJobKeepsItsNameUntilItIsDeleted) {
  Run("a", "exit 0");
  End("a");
  auto second = Create("a");
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().hint, HasSubstr("stasis delete a"));
  ASSERT_TRUE(store.Delete("a"));
  EXPECT_TRUE(Create("a"));
}

TEST_F(StoreTest, DiscardedClaimLeavesNothing) {
  auto claim = Create("a");
  ASSERT_TRUE(claim && claim->Discard());
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(Hidden(), IsEmpty());
}

TEST_F(StoreTest, LeftoversOfAKilledCreatorAreSweptByTheNext) {
  pid_t creator = ::fork();
  if (creator == 0) {
    auto claim = Create("a");
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(creator, nullptr, 0);
  EXPECT_EQ(Look("a").state, State::kLost);
  ASSERT_TRUE(MakeDirs(folder.path() + "/jobs/.new-1"));
  ASSERT_TRUE(MakeDirs(folder.path() + "/jobs/.old-1/x"));
  auto claim = Create("b");
  ASSERT_TRUE(claim);
  EXPECT_THAT(Names(), UnorderedElementsAre("b"));
  EXPECT_THAT(Hidden(), IsEmpty());
}

TEST_F(StoreTest, OneOfSeveralCreatorsOfANameSucceeds) {
  constexpr int kCreators = 8;
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  std::vector<pid_t> creators;
  for (int i = 0; i < kCreators; ++i) {
    pid_t pid = ::fork();
    if (pid == 0) {
      ::close(gate[1]);
      char c;
      (void)!::read(gate[0], &c, 1);  // all start at once, when the last gate closes
      auto claim = Create("a");
      if (!claim) ::_exit(claim.error().code == Code::kAlreadyExists ? 1 : 2);
      // Keeps later creators from sweeping the job as abandoned.
      (void)WriteFileDurably(claim->folder() + "/process.json", "{}");
      ::_exit(0);
    }
    creators.push_back(pid);
  }
  ::close(gate[0]);
  ::close(gate[1]);
  int won = 0, lost = 0;
  for (pid_t pid : creators) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    won += WEXITSTATUS(status) == 0;
    lost += WEXITSTATUS(status) == 1;
  }
  EXPECT_EQ(won, 1);
  EXPECT_EQ(lost, kCreators - 1);
}

TEST_F(StoreTest, ConcurrentlyAddedCheckpointsAreAllKept) {
  Run("a", "exit 0");
  End("a");
  std::vector<pid_t> writers;
  for (int i = 0; i < 8; ++i) {
    pid_t pid = ::fork();
    if (pid == 0) {
      Status added = store.AddCheckpoint("a", {"/images/" + std::to_string(i), "", 1, 1, 1});
      ::_exit(added ? 0 : 1);
    }
    writers.push_back(pid);
  }
  for (pid_t pid : writers) {
    int status = 1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(Look("a").checkpoints.size(), 8u);
}

TEST_F(StoreTest, DamagedRecordIsAnErrorOfItsJobWhichCanBeDeleted) {
  Run("good", "exit 0");
  Run("bad", "exit 0");
  End("good");
  Job bad = End("bad");
  for (const char* file : {"process.json", "exit.json"}) {
    SCOPED_TRACE(file);
    std::string path = store.Folder("bad") + "/" + file;
    auto was = ReadFile(path);
    ASSERT_TRUE(was);
    ASSERT_TRUE(WriteFileDurably(path, "{\"version\": 1, \"id\": [[["));
    auto listed = store.List();
    ASSERT_TRUE(listed);
    ASSERT_EQ(listed->size(), 2u);
    EXPECT_FALSE((*listed)[0].job);
    EXPECT_TRUE((*listed)[1].job);
    EXPECT_EQ((*listed)[0].job.error().code, Code::kDataLoss);
    ASSERT_TRUE(WriteFileDurably(path, *was));
  }
  ASSERT_TRUE(WriteFileDurably(store.Folder("bad") + "/exit.json", std::string(40 << 20, ' ')));
  auto too_long = store.Load("bad");
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, Code::kResourceExhausted);
  EXPECT_TRUE(store.Delete("bad"));
  EXPECT_THAT(Names(), UnorderedElementsAre("good"));
}

// The saved state is used if the shim's record is gone.
TEST_F(StoreTest, EndIsKeptWithoutItsRecord) {
  Run("a", "exit 3");
  EXPECT_EQ(End("a").ending->code, 3);
  ASSERT_TRUE(RemoveTree(store.Folder("a")));
  EXPECT_EQ(Look("a").state, State::kExited);
  EXPECT_EQ(Look("a").ending->code, 3);
  ASSERT_TRUE(store.Delete("a"));
  EXPECT_EQ(store.Load("a").error().code, Code::kNotFound);
}

// A kill between the removal of the directory and of the row leaves a job that can be deleted
// again.
TEST_F(StoreTest, JobWithoutItsFolderCanBeDeletedAndItsNameUsed) {
  Run("a", "exit 0");
  End("a");
  const std::string hidden = folder.path() + "/jobs/.old-abcdef";
  ASSERT_EQ(::rename(store.Folder("a").c_str(), hidden.c_str()), 0);
  EXPECT_FALSE(Create("a"));
  ASSERT_TRUE(store.Delete("a"));
  EXPECT_TRUE(Create("a"));
  EXPECT_FALSE(PathExists(hidden));
}

// If a damaged database is moved away, its jobs are not listed any more, and a running job keeps
// its folder.
TEST_F(StoreTest, FolderWithoutARowCanBeDeletedOnceItsProgramHasEnded) {
  Fifo go(folder.path() + "/go");
  StartedJob started = Run("a", "read x < " + go.path());
  const std::string database = folder.path() + "/jobs" + kDatabaseFile;
  ASSERT_EQ(::rename(database.c_str(), (folder.path() + "/away").c_str()), 0);
  EXPECT_EQ(store.Load("a").error().code, Code::kNotFound);
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(Create("a").error().code, Code::kAlreadyExists);
  EXPECT_EQ(store.Delete("a").error().code, Code::kFailedPrecondition);
  go.Write();
  AwaitGone(started.shim);
  ASSERT_TRUE(store.Delete("a"));
  EXPECT_FALSE(PathExists(store.Folder("a")));
  EXPECT_TRUE(Create("a"));
}

TEST_F(StoreTest, DescriptionThatCannotBeReadBackIsRejected) {
  using namespace std::string_literals;
  const NewJob kWanted[] = {{"a", {}, "/", ""},
                            {"a", {"/bin/true", "x\0y"s}, "/", ""},
                            {"a", {"/bin/true", std::string(9 << 20, 'x')}, "/", ""},
                            {"a", {"/bin/true"}, "here", ""},
                            {"a", {"/bin/true"}, "/" + std::string(5000, 'a'), ""},
                            {"a", {"/bin/true"}, "/", "log"}};
  for (const NewJob& wanted : kWanted) EXPECT_FALSE(store.Create(wanted));
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(Hidden(), IsEmpty());
}

TEST_F(StoreTest, JobOfAnotherBootIsLostUnlessItsEndWasRecorded) {
  StartedJob started = Run("a", "exit 0");
  End("a");
  AwaitGone(started.shim);
  std::string path = store.Folder("a") + "/process.json";
  auto text = ReadFile(path);
  ASSERT_TRUE(text);
  size_t at = text->find("boot_id\": \"") + 11;
  // Write a record with this process's id, but of another boot.
  auto self = process::ReadStat({::getpid()});
  std::string record =
      R"({"version": 1, "boot_id": "another", "shim": {"pid": )" + std::to_string(::getpid()) +
      R"(, "start_time": )" + std::to_string(self->id.start_time) + R"(}, "root": {"pid": )" +
      std::to_string(::getpid()) + R"(, "start_time": )" + std::to_string(self->id.start_time) +
      R"(}, "log": {"device": 1, "inode": 1}})";
  text->replace(at, 1, "x");
  ASSERT_TRUE(WriteFileDurably(path, *text));
  EXPECT_EQ(Look("a").state, State::kExited);
  ASSERT_TRUE(WriteFileDurably(path, record));
  EXPECT_EQ(Look("a").state, State::kLost);
  EXPECT_FALSE(Look("a").has_shim);
}

TEST_F(StoreTest, JobOfAnotherMachineRunsThere) {
  StartedJob started = Run("a", "exit 0");
  End("a");
  AwaitGone(started.shim);
  const std::string path = store.Folder("a") + "/process.json";
  auto text = ReadFile(path);
  ASSERT_TRUE(text);
  auto processes = DecodeProcesses(*text);
  ASSERT_TRUE(processes);
  EXPECT_EQ(processes->host, process::HostName());
  processes->boot_id = "another";
  processes->root.start_time += 1;  // its end is not recorded
  ASSERT_TRUE(WriteFileDurably(path, EncodeProcesses(*processes)));
  EXPECT_EQ(Look("a").state, State::kLost) << "an earlier boot of this machine";

  processes->host = "node7";
  processes->root.start_time += 1;
  const std::string record = EncodeProcesses(*processes);
  ASSERT_TRUE(WriteFileDurably(path, record));
  const Job job = Look("a");
  EXPECT_EQ(job.state, State::kElsewhere);
  auto listed = store.List();
  ASSERT_TRUE(listed && listed->size() == 1 && listed->front().job);
  EXPECT_EQ(listed->front().job->state, State::kElsewhere);
  EXPECT_EQ(listed->front().job->changed_ms, job.changed_ms) << "looking has changed it";
  EXPECT_EQ(ReadFile(path).value_or(""), record);
  auto expect_refused = [](const Error& error) {
    EXPECT_EQ(error.code, Code::kFailedPrecondition);
    EXPECT_THAT(error.message, HasSubstr("job a runs on node7"));
    EXPECT_THAT(error.hint, HasSubstr("kill --lost a"));
  };
  const auto target = store.ResolveTarget("a");
  ASSERT_FALSE(target);
  expect_refused(target.error());
  const Status deleted = store.Delete("a");
  ASSERT_FALSE(deleted);
  expect_refused(deleted.error());
  const auto end = AwaitEnd(store, "a", Soon());
  ASSERT_FALSE(end);
  expect_refused(end.error());

  {
    auto shim = LockFile(store.Folder("a") + "/shim.lock", LOCK_EX | LOCK_NB);
    ASSERT_TRUE(shim) << shim.error().ToString();
    const Status lost = store.NoteLost("a");
    ASSERT_FALSE(lost);
    EXPECT_THAT(lost.error().message, HasSubstr("job a still runs on node7"));
    EXPECT_EQ(Look("a").state, State::kElsewhere);
  }
  ASSERT_TRUE(store.NoteLost("a"));
  EXPECT_EQ(Look("a").state, State::kLost);
  EXPECT_FALSE(store.NoteLost("a"));
  EXPECT_TRUE(store.Delete("a"));
}

TEST_F(StoreTest, ThreadIsRejectedAsATarget) {
  int ready[2], go[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  std::thread thread([&] {
    pid_t tid = ::gettid();
    (void)!::write(ready[1], &tid, sizeof tid);
    char c;
    (void)!::read(go[0], &c, 1);
  });
  pid_t tid = 0;
  ASSERT_EQ(::read(ready[0], &tid, sizeof tid), static_cast<ssize_t>(sizeof tid));
  auto target = store.ResolveTarget(std::to_string(tid));
  (void)!::write(go[1], "g", 1);
  thread.join();
  for (int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
  ASSERT_FALSE(target);
  EXPECT_EQ(ExitCode(target.error()), 2);
  EXPECT_THAT(target.error().hint, HasSubstr(std::to_string(::getpid())));
}

TEST_F(StoreTest, NamesAndPidsAreResolvedToTargets) {
  Fifo ready(folder.path() + "/ready"), go(folder.path() + "/go");
  StartedJob started =
      Run("a", "sh -c 'echo $$ > " + ready.path() + "; read x < " + go.path() + "'; exit 0");
  std::string child = ready.Read();
  auto by_name = store.ResolveTarget("a");
  ASSERT_TRUE(by_name && by_name->job);
  EXPECT_EQ(by_name->root, started.root);
  auto by_root = store.ResolveTarget(process::ToString(started.root.pid));
  ASSERT_TRUE(by_root && by_root->job);
  EXPECT_EQ(by_root->job->id, "a");
  EXPECT_EQ(by_root->root, started.root);
  auto by_child = store.ResolveTarget(child);
  ASSERT_TRUE(by_child && by_child->job);
  EXPECT_EQ(by_child->job->id, "a");
  EXPECT_EQ(process::ToString(by_child->root.pid), child);
  auto by_shim = store.ResolveTarget(process::ToString(started.shim.pid));
  ASSERT_TRUE(by_shim);
  EXPECT_FALSE(by_shim->job);
  auto stranger = store.ResolveTarget(std::to_string(::getpid()));
  ASSERT_TRUE(stranger);
  EXPECT_FALSE(stranger->job);
  go.Write();
  End("a");
  auto ended = store.ResolveTarget("a");
  ASSERT_TRUE(ended && ended->job);
  EXPECT_EQ(ended->root.pid.value, 0);

  struct Row {
    const char* text;
    int exit_code;
  };
  for (const Row& row :
       {Row{"nosuch", 3}, Row{"4194304", 3}, Row{"0", 2}, Row{"", 2}, Row{"-1", 2},
        Row{"99999999999999999999", 2}, Row{"../a", 2}, Row{"A", 2}, Row{"a b", 2}}) {
    auto target = store.ResolveTarget(row.text);
    ASSERT_FALSE(target) << row.text;
    EXPECT_EQ(ExitCode(target.error()), row.exit_code) << row.text;
  }
}

}  // namespace
}  // namespace stasis::jobs
