#include "jobs/database.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <thread>

#include "jobs/test_jobs.h"

namespace stasis::jobs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Job Example(const std::string& id = "llama") {
  Job job;
  job.id = id;
  job.argv = {"/bin/sh", "-c", "echo \"x\"", "", "caf\xe9"};
  job.cwd = "/home/u";
  job.log = "/var/log/\xff";
  job.agent = "/var/lib/stasis/agents/00/libstasis-agent.so";
  job.uid = 1000;
  job.gid = 4294967294u;
  job.created_ms = job.changed_ms = 1700000000000;
  return job;
}

Checkpoint Dump(int number) {
  return {"/images/" + std::to_string(number), std::to_string(number), number, 5, 0.5};
}

class DatabaseTest : public ::testing::Test {
 protected:
  Database Open() {
    auto database = Database::Open(folder.path());
    EXPECT_TRUE(database) << database.error().ToString();
    return std::move(*database);
  }
  std::string Path() const { return folder.path() + kDatabaseFile; }
  static Status Insert(Database& database, const Job& job) {
    return database.Write([&]() -> Status {
      STASIS_ASSIGN(bool is_new, database.Insert(job));
      return is_new ? Status() : Status(Fail(Code::kAlreadyExists, "taken"));
    });
  }
  static Status Add(Database& database, const std::string& id, const Checkpoint& checkpoint) {
    return database.Write([&] { return database.AddCheckpoint(id, checkpoint); });
  }
  Sqlite Raw(const std::string& path) {
    auto sqlite = Sqlite::Open(path);
    EXPECT_TRUE(sqlite);
    return std::move(*sqlite);
  }

  TempFolder folder;
};

TEST_F(DatabaseTest, JobIsReadAsItWasWritten) {
  Job job = Example();
  job.state = State::kExited;
  job.processes = Processes{{{7}, 1}, {{8}, UINT64_MAX}, "boot", {3, UINT64_MAX}};
  job.ending = Ending{false, 130, 2, 1700000000001};
  {
    Database database = Open();
    ASSERT_TRUE(Insert(database, job));
    EXPECT_FALSE(Insert(database, job));
  }
  Database database = Open();
  auto found = database.Find("llama");
  ASSERT_TRUE(found && *found) << found.error().ToString();
  const Job& back = **found;
  EXPECT_EQ(back.argv, job.argv);
  EXPECT_EQ(back.cwd, job.cwd);
  EXPECT_EQ(back.log, job.log);
  EXPECT_EQ(back.agent, job.agent);
  EXPECT_EQ(back.uid, job.uid);
  EXPECT_EQ(back.gid, job.gid);
  EXPECT_EQ(back.created_ms, job.created_ms);
  EXPECT_EQ(back.state, job.state);
  EXPECT_EQ(back.processes, job.processes);
  EXPECT_EQ(back.ending, job.ending);
  EXPECT_EQ(back.dumped_image, std::nullopt);
  auto missing = database.Find("missing");
  EXPECT_TRUE(missing && !*missing);
  struct stat st;
  ASSERT_EQ(::stat(Path().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
}

TEST_F(DatabaseTest, CheckpointsAreListedInOrderAndDumpsSeparately) {
  Database database = Open();
  ASSERT_TRUE(Insert(database, Example()));
  ASSERT_TRUE(Insert(database, Example("none")));
  Checkpoint suspend;
  suspend.kind = CheckpointKind::kSuspend;
  suspend.bytes = 1ull << 40;
  suspend.written_bytes = 3;
  suspend.account = "{\"verb\": \"suspend\"}";
  ASSERT_TRUE(Add(database, "llama", Dump(1)));
  ASSERT_TRUE(Add(database, "llama", Dump(2)));
  ASSERT_TRUE(Add(database, "llama", suspend));
  ASSERT_TRUE(database.Write([&] { return database.SetAccount("llama", "/images/1", "{}"); }));
  EXPECT_FALSE(Add(database, "nobody", Dump(1)));

  auto all = database.Checkpoints("llama");
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[0].account, "{}");
  EXPECT_EQ((*all)[0].written_bytes, std::nullopt);
  EXPECT_EQ((*all)[1].account, "");
  EXPECT_EQ((*all)[1].image, "/images/2");
  EXPECT_EQ((*all)[2].kind, CheckpointKind::kSuspend);
  EXPECT_EQ((*all)[2].bytes, 1ull << 40);
  EXPECT_EQ((*all)[2].written_bytes, 3u);
  EXPECT_EQ((*all)[2].account, suspend.account);

  auto found = database.Find("llama");
  ASSERT_TRUE(found && *found);
  ASSERT_EQ((*found)->checkpoints.size(), 2u);
  auto listed = database.List();
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 2u);
  ASSERT_TRUE((*listed)[0].job);
  ASSERT_EQ((*listed)[0].job->checkpoints.size(), 1u);
  EXPECT_EQ((*listed)[0].job->checkpoints[0].image, "/images/2");
  EXPECT_EQ((*listed)[1].id, "none");

  ASSERT_TRUE(database.Write([&] { return database.Remove("llama"); }));
  EXPECT_TRUE(database.Checkpoints("llama")->empty());
}

TEST_F(DatabaseTest, OnlyOldCheckpointsOfTheSameKindAreDropped) {
  Database database = Open();
  ASSERT_TRUE(Insert(database, Example()));
  ASSERT_TRUE(database.Write([&]() -> Status {
    STASIS_TRY(database.AddCheckpoint("llama", Dump(1)));
    for (int i = 0; i < kKeptCheckpoints + 5; ++i) {
      Checkpoint suspend = {"", "", i, 0, 0};
      suspend.kind = CheckpointKind::kSuspend;
      STASIS_TRY(database.AddCheckpoint("llama", suspend));
    }
    return {};
  }));
  auto all = database.Checkpoints("llama");
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), kKeptCheckpoints + 1u);
  EXPECT_EQ((*all)[0].kind, CheckpointKind::kDump);
  EXPECT_EQ((*all)[1].time_ms, 5);
}

TEST_F(DatabaseTest, AnOldStateDoesNotReplaceANewerOne) {
  Database database = Open();
  ASSERT_TRUE(Insert(database, Example()));
  Job slow = **database.Find("llama"), quick = slow;
  quick.state = State::kRunning;
  slow.state = State::kLost;
  ASSERT_TRUE(database.Write([&] { return database.SaveSeen(quick); }));
  ASSERT_TRUE(database.Write([&] { return database.SaveSeen(slow); }));
  EXPECT_EQ((*database.Find("llama"))->state, State::kRunning);
}

TEST_F(DatabaseTest, DatabaseOfALaterVersionIsRejectedAndNotChanged) {
  Open();
  ASSERT_TRUE(Raw(Path()).Run("PRAGMA user_version = 7"));
  const std::string before = *ReadFile(Path());
  auto database = Database::Open(folder.path());
  ASSERT_FALSE(database);
  EXPECT_EQ(database.error().code, Code::kUnimplemented);
  EXPECT_THAT(database.error().message,
              AllOf(HasSubstr(Path()), HasSubstr("version 7"), HasSubstr("supports version 3")));
  EXPECT_TRUE(*ReadFile(Path()) == before);
}

TEST_F(DatabaseTest, DamagedDatabaseIsRejectedByNameAndNeverReplaced) {
  { Database database = Open(); }
  const std::string good = *ReadFile(Path());
  Sqlite other = *Sqlite::Open(folder.path() + "/other", true);
  ASSERT_TRUE(other.RunScript("CREATE TABLE job (id TEXT)"));
  const std::string cases[] = {"",
                               "x",
                               std::string(100000, 'x'),
                               std::string(4096, '\0'),
                               good.substr(0, 100),
                               good.substr(0, good.size() / 2),
                               *ReadFile(folder.path() + "/other")};
  for (const std::string& bad : cases) {
    SCOPED_TRACE(bad.size());
    ASSERT_TRUE(ReplaceFile(Path(), bad));
    auto database = Database::Open(folder.path());
    Status status = database ? Status() : Status(Fail(database.error()));
    // The first half of a database begins correctly, so the damage shows only when it is read.
    if (database) {
      auto listed = database->List();
      if (!listed) status = Fail(listed.error());
    }
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kDataLoss) << status.error().ToString();
    EXPECT_THAT(status.error().message, AllOf(HasSubstr(Path()), HasSubstr("damaged")));
    EXPECT_THAT(status.error().hint, HasSubstr("-journal"));
    EXPECT_TRUE(*ReadFile(Path()) == bad);
  }
}

// A wrong byte gives an error, the old content, or part of it, but no crash and no invalid job.
TEST_F(DatabaseTest, WrongBytesGiveAnErrorOrValidJobs) {
  {
    Database database = Open();
    Job job = Example();
    job.processes = Processes{{{7}, 1}, {{8}, 2}, "boot", {3, 4}};
    ASSERT_TRUE(Insert(database, job));
    ASSERT_TRUE(Add(database, "llama", Dump(1)));
  }
  const std::string good = *ReadFile(Path());
  int errors = 0;
  for (size_t at = 0; at < good.size(); at += at < 200 ? 1 : 37) {
    if (good[at] == '\0') continue;
    std::string bad = good;
    bad[at] = static_cast<char>(~bad[at]);
    ASSERT_TRUE(ReplaceFile(Path(), bad));
    auto database = Database::Open(folder.path());
    if (!database) {
      ++errors;
      continue;
    }
    auto listed = database->List();
    auto found = database->Find("llama");
    auto checkpoints = database->Checkpoints("llama");
    errors += !listed || !found || !checkpoints;
    for (size_t i = 0; listed && i < listed->size(); ++i) {
      const auto& job = (*listed)[i].job;
      errors += !job;
      if (!job) continue;
      EXPECT_TRUE(IsValidId(job->id) && job->cwd[0] == '/' && job->log[0] == '/') << at;
      const bool bounded = !job->processes || job->processes->root.pid.value >= 2;
      EXPECT_TRUE(bounded) << at;
    }
  }
  EXPECT_GT(errors, 10);
}

TEST_F(DatabaseTest, InvalidRowIsAnErrorOfItsJobOnly) {
  const char* const kChanges[] = {
      "UPDATE job SET argv = x''",
      "UPDATE job SET cwd = x'61'",
      "UPDATE job SET log = x''",
      "UPDATE job SET agent = x'61'",
      "UPDATE job SET seen_state = 'melted'",
      "UPDATE job SET seen_root_pid = 1",
      "UPDATE job SET seen_root_pid = 4194305",
      "UPDATE job SET seen_shim_pid = -1",
      "UPDATE job SET seen_shim_pid = 0",  // with a start time
      "UPDATE job SET seen_shim_pid = NULL",
      "UPDATE job SET seen_code = 256",
      "UPDATE job SET seen_code = 0, seen_signal = 128",
      "UPDATE checkpoint SET kind = 'melted'",
      "UPDATE checkpoint SET image = x'61'",
      "UPDATE checkpoint SET bytes = -1",
      "UPDATE checkpoint SET seconds = 9e999",
      "UPDATE checkpoint SET copy_repository = x'61', copy_name = x''",
  };
  Job job = Example("bad");
  job.processes = Processes{{{7}, 1}, {{8}, 2}, "boot", {3, 4}};
  for (const char* change : kChanges) {
    SCOPED_TRACE(change);
    Database database = Open();
    ASSERT_TRUE(Insert(database, job));
    ASSERT_TRUE(Add(database, "bad", Dump(1)));
    ASSERT_TRUE(Raw(Path()).Run(change));
    ASSERT_TRUE(Insert(database, Example("good")));
    auto found = database.Find("bad");
    auto checkpoints = database.Checkpoints("bad");
    EXPECT_TRUE(!found || !checkpoints || (*found)->checkpoints.empty());
    auto listed = database.List();
    ASSERT_TRUE(listed);
    ASSERT_EQ(listed->size(), 2u);
    EXPECT_TRUE((*listed)[1].job);
    ASSERT_TRUE(database.Write([&]() -> Status {
      STASIS_TRY(database.Remove("bad"));
      return database.Remove("good");
    }));
  }
}

TEST_F(DatabaseTest, MigrationsAreAppliedInOrderAndAllOrNone) {
  constexpr Migration kOne[] = {{1, "one", "CREATE TABLE a (x INTEGER);"}};
  constexpr Migration kGood[] = {kOne[0],
                                 {2, "two", "ALTER TABLE a ADD COLUMN y INTEGER;"},
                                 {3, "three", "UPDATE a SET y = x + 1;"}};
  constexpr Migration kBad[] = {kGood[0], kGood[1], {3, "three", "UPDATE a SET z = 1;"}};
  ASSERT_TRUE(Database::Open(folder.path(), kOne));
  ASSERT_TRUE(Raw(Path()).Run("INSERT INTO a VALUES (41)"));
  auto failed = Database::Open(folder.path(), kBad);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().ToString(), HasSubstr("version 3 (three)"));
  EXPECT_EQ(*Raw(Path()).Number("PRAGMA user_version"), 1);
  EXPECT_EQ(*Raw(Path()).Number("SELECT count(*) FROM pragma_table_info('a')"), 1);
  ASSERT_TRUE(Database::Open(folder.path(), kGood));
  EXPECT_EQ(*Raw(Path()).Number("PRAGMA user_version"), 3);
  EXPECT_EQ(*Raw(Path()).Number("SELECT y FROM a"), 42);
  ASSERT_TRUE(Database::Open(folder.path(), kGood));
}

TEST_F(DatabaseTest, ACopyBelongsToTheLastDumpToThisPath) {
  Database database = Open();
  ASSERT_TRUE(Insert(database, Example()));
  const ImageCopy first{"fleet", "one", false}, second{"/mnt/x", "caf\xe9", true};
  Checkpoint with_copy = Dump(1);
  with_copy.copy = first;
  for (const Checkpoint& added : {with_copy, Dump(1), Dump(2)}) {
    ASSERT_TRUE(Add(database, "llama", added));
  }
  ASSERT_TRUE(database.Write([&] { return database.SetCopy("/images/1", second); }));
  ASSERT_TRUE(database.Write([&] { return database.SetCopy("/images/none", second); }));
  auto checkpoints = database.Checkpoints("llama");
  ASSERT_TRUE(checkpoints);
  ASSERT_EQ(checkpoints->size(), 3u);
  EXPECT_EQ((*checkpoints)[0].copy, first);
  EXPECT_EQ((*checkpoints)[1].copy, second);
  EXPECT_EQ((*checkpoints)[2].copy, std::nullopt);
  auto job = database.Find("llama");
  ASSERT_TRUE(job && *job);
  EXPECT_EQ((*job)->checkpoints[1].copy, second);
}

TEST_F(DatabaseTest, ADatabaseOfTheFirstVersionHasNoCopies) {
  ASSERT_TRUE(Database::Open(folder.path(), Migrations().first(1)));
  ASSERT_TRUE(Raw(Path()).Run(
      "INSERT INTO job VALUES ('old', x'6100', x'2f', x'2f6c', x'', 0, 0, 1, 1, 'exited', "
      "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"));
  ASSERT_TRUE(Raw(Path()).Run(
      "INSERT INTO checkpoint VALUES (1, 'old', 'dump', x'2f78', x'78', 1, 2, NULL, 0.5, NULL)"));
  Database database = Open();
  auto job = database.Find("old");
  ASSERT_TRUE(job && *job) << job.error().ToString();
  ASSERT_EQ((*job)->checkpoints.size(), 1u);
  EXPECT_EQ((*job)->checkpoints[0].image, "/x");
  EXPECT_EQ((*job)->checkpoints[0].copy, std::nullopt);
}

TEST_F(DatabaseTest, JournalOfARemovedDatabaseIsNotAppliedToANewOne) {
  { Database database = Open(); }
  // Create the state that a kill in the middle of a commit leaves.
  std::string journal = Path() + "-journal";
  ASSERT_TRUE(ReplaceFile(
      journal, std::string("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 8) + std::string(1024, '\1')));
  ASSERT_EQ(::rename(Path().c_str(), (Path() + ".away").c_str()), 0);
  Database database = Open();
  ASSERT_TRUE(Insert(database, Example()));
  EXPECT_TRUE(PathExists(journal + ".old"));
}

TEST_F(DatabaseTest, ALockedDatabaseIsBusyForWritersOnly) {
  Database database = Open();
  ASSERT_TRUE(Insert(database, Example()));
  Sqlite other = Raw(Path());
  ASSERT_TRUE(other.Run("BEGIN IMMEDIATE"));
  other.SetBusyTimeout(0);
  EXPECT_TRUE(database.Find("llama"));
  Sqlite late = Raw(Path());
  late.SetBusyTimeout(1);
  Status busy = late.Write([] { return Status(); });
  ASSERT_FALSE(busy);
  EXPECT_EQ(ExitCode(busy.error()), 7);
  EXPECT_THAT(busy.error().hint, HasSubstr("fuser"));
  ASSERT_TRUE(other.Run("ROLLBACK"));
  EXPECT_TRUE(late.Write([] { return Status(); }));
}

// Each process creates jobs with checkpoints until it is killed, and reports each commit.
TEST_F(DatabaseTest, KillsDuringWritesLoseNoReportedJob) {
  constexpr int kRounds = 12, kWriters = 2;
  uint32_t said[kWriters] = {}, seed = 12345;
  for (int round = 0; round < kRounds; ++round) {
    int pipes[kWriters][2];
    pid_t writers[kWriters];
    for (int w = 0; w < kWriters; ++w) {
      ASSERT_EQ(::pipe(pipes[w]), 0);
      writers[w] = ::fork();
      if (writers[w] == 0) {
        for (uint32_t next = said[w] + 1;; ++next) {
          auto database = Database::Open(folder.path());
          std::string id = std::string(1, static_cast<char>('a' + w)) + std::to_string(next);
          Status done =
              !database ? Status(Fail(database.error())) : database->Write([&]() -> Status {
                // A kill in the last round may have come after the commit and before its report, so
                // the job may exist.
                STASIS_TRY(database->Remove(id));
                STASIS_TRY(database->Insert(Example(id)));
                return database->AddCheckpoint(id, Dump(1));
              });
          if (!done) std::fprintf(stderr, "%s\n", done.error().ToString().c_str());
          if (!done) ::_exit(1);
          (void)!::write(pipes[w][1], &next, sizeof next);
        }
      }
      ::close(pipes[w][1]);
    }
    // Kill at a different time in each round, counted from the first report.
    (void)!::read(pipes[0][0], &said[0], sizeof said[0]);
    seed = seed * 1103515245 + 12345;
    ::usleep((seed >> 16) % 3000);
    for (int w = 0; w < kWriters; ++w) {
      ::kill(writers[w], SIGKILL);
      int status = 0;
      ::waitpid(writers[w], &status, 0);
      EXPECT_TRUE(WIFSIGNALED(status)) << "a writer failed";
      while (::read(pipes[w][0], &said[w], sizeof said[w]) == sizeof said[w]) {
      }
      ::close(pipes[w][0]);
    }
    Database database = Open();
    auto listed = database.List();
    ASSERT_TRUE(listed) << listed.error().ToString();
    uint32_t found[kWriters] = {};
    for (const auto& row : *listed) {
      ASSERT_TRUE(row.job) << row.job.error().ToString();
      EXPECT_EQ(row.job->checkpoints.size(), 1u) << row.id;
      ++found[row.id[0] - 'a'];
    }
    for (int w = 0; w < kWriters; ++w) {
      EXPECT_GE(found[w], said[w]);
      EXPECT_LE(found[w], said[w] + 1);
    }
    Sqlite raw = Raw(Path());
    auto check = raw.Query("PRAGMA integrity_check");
    ASSERT_TRUE(check && *check->Next());
    EXPECT_EQ(check->Bytes(0), "ok");
  }
  EXPECT_GE(said[0], uint32_t{kRounds});
}

TEST_F(DatabaseTest, FullDiskIsReportedAndLosesNothing) {
  // The child mounts a small file system that only it sees, and fills it.
  pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.path().c_str(), "tmpfs", 0, "size=128k") != 0) {
      ::_exit(77);
    }
    auto database = Database::Open(folder.path());
    if (!database) ::_exit(2);
    Status status;
    int made = 0;
    while (made < 1000 && (status = Insert(*database, Example("j" + std::to_string(made))))) ++made;
    if (status || made < 3 || status.error().code != Code::kResourceExhausted) ::_exit(3);
    if (status.error().message.find(folder.path()) == std::string::npos) ::_exit(4);
    auto listed = database->List();
    if (!listed || listed->size() != static_cast<size_t>(made)) ::_exit(5);
    // Removal frees space and must work without free space.
    if (!database->Write([&] { return database->Remove("j0"); })) ::_exit(6);
    ::_exit(Insert(*database, Example("again")) ? 0 : 7);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "mounting a small file system needs root";
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

}  // namespace
}  // namespace stasis::jobs
