#include "plan/journal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"
#include "base/file_lock.h"
#include "config/open_paths.h"
#include "process/host_name.h"

namespace stasis::plan {
namespace {

using std::chrono::milliseconds;

class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/stasis-journal-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    config::Settings settings;
    settings.state_dir = folder;
    auto paths = config::OpenPaths(settings);
    ASSERT_TRUE(paths);
    paths_ = *paths;
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_)); }

  Operation Make(const std::string& verb, pid_t member) {
    Operation operation;
    operation.verb = verb;
    operation.target = "job-a";
    operation.boot_id = *process::BootId();
    operation.owner = process::ReadStat({::getpid()})->id;
    operation.members = {{{member}, 17}};
    operation.device_processes = {{{{member}, 17},
                                   device::ProcessState::kRunning,
                                   {{"GPU-1"}, {"GPU-2"}},
                                   4096,
                                   {},
                                   true,
                                   8192}};
    operation.image = "/images/x";
    operation.job = job_;
    return operation;
  }

  // Starts a process that begins an operation, commits it if `commit` is true, and kills itself.
  void BeginAndDie(const std::string& verb, pid_t member, bool commit) {
    pid_t child = ::fork();
    if (child == 0) {
      auto journal = Journal::Prepare(paths_, verb);
      if (!journal || !journal->Begin(Make(verb, member))) ::_exit(1);
      if (!journal->PhaseBegins("gpu-lock")) ::_exit(2);
      if (commit && !journal->Commit()) ::_exit(3);
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  }

  std::string folder_;
  std::string job_;  // of operations of Make()
  Paths paths_;
};

TEST_F(JournalTest, AnEntryOfAnotherMachineIsLeftAlone) {
  job_ = "a";
  BeginAndDie("dump", 4711, false);
  auto names = ListDir(paths_.journal());
  ASSERT_TRUE(names && names->size() == 1);
  const std::string path = paths_.journal() + "/" + names->front();
  auto text = ReadFile(path);
  ASSERT_TRUE(text);
  auto replace = [&](const std::string& old, const std::string& by) {
    const size_t at = text->find(old);
    ASSERT_NE(at, text->npos) << old << " in " << *text;
    text->replace(at, old.size(), by);
  };
  replace(*process::BootId(), "another");
  ASSERT_TRUE(WriteFileDurably(path, *text));
  auto earlier = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(earlier && earlier->size() == 1);
  EXPECT_FALSE(earlier->front().foreign) << "it is of an earlier boot of this machine";
  earlier->clear();
  replace("\"host\":\"" + process::HostName(), "\"host\":\"another-" + process::HostName());
  ASSERT_TRUE(WriteFileDurably(path, *text));
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(entries && entries->size() == 1);
  EXPECT_TRUE(entries->front().foreign);
  EXPECT_FALSE(entries->front().lock);
  EXPECT_EQ(entries->front().operation.host, "another-" + process::HostName());
  // Its process ids are those of other processes here.
  auto journal = Journal::Prepare(paths_, "suspend");
  ASSERT_TRUE(journal);
  Status begun = journal->Begin(Make("suspend", 4711));
  EXPECT_TRUE(begun) << begun.error().ToString();
  EXPECT_TRUE(journal->Finish());

  // Once its machine is known to have failed, it is recovered here, even if its last line is torn.
  ASSERT_TRUE(WriteFileDurably(path, *text + "{\"phase\": \"gpu"));
  EXPECT_EQ(TakeOverEntries(paths_, "b").value_or(9), 0u);
  entries->clear();
  {
    auto held = Open(path, O_RDWR);
    ASSERT_TRUE(held && TryLock(held->get()));
    EXPECT_EQ(TakeOverEntries(paths_, "a").value_or(9), 0u) << "its machine works on it";
    auto second = Journal::Prepare(paths_, "resume");
    ASSERT_TRUE(second);
    begun = second->Begin(Make("resume", 4712));
    ASSERT_FALSE(begun);
    EXPECT_EQ(begun.error().code, Code::kAborted);
    EXPECT_NE(begun.error().message.find(" of another-"), std::string::npos);
  }
  EXPECT_EQ(TakeOverEntries(paths_, "a").value_or(9), 1u);
  EXPECT_EQ(TakeOverEntries(paths_, "a").value_or(9), 0u);
  entries = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(entries && entries->size() == 1);
  EXPECT_TRUE(entries->front().readable) << entries->front().problem;
  EXPECT_FALSE(entries->front().foreign);
  EXPECT_TRUE(entries->front().lock);
  EXPECT_EQ(entries->front().operation.boot_id, "another");
  EXPECT_EQ(entries->front().operation.phases_begun, std::vector<std::string>{"gpu-lock"});
}

TEST_F(JournalTest, LaterNotesAndEndedPhasesAreRead) {
  {
    auto journal = Journal::Prepare(paths_, "dump");
    ASSERT_TRUE(journal && journal->Begin(Make("dump", 4711)));
    ASSERT_TRUE(journal->PhaseBegins("describe"));
    ASSERT_TRUE(journal->NoteMembers({{{4711}, 17}, {{4712}, 18}}));
    ASSERT_TRUE(journal->PhaseEnded("describe") && journal->PhaseBegins("commit"));
    ASSERT_TRUE(journal->NoteElsewhere(Elsewhere::kPerhaps));
    ASSERT_TRUE(journal->NoteStopped({{{4712}, 18}}));
  }
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(100)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  const Operation& operation = entries->front().operation;
  EXPECT_EQ(operation.members, (std::vector<process::ProcessId>{{{4711}, 17}, {{4712}, 18}}));
  EXPECT_EQ(operation.phases_begun, (std::vector<std::string>{"describe", "commit"}));
  EXPECT_EQ(operation.phases_ended, std::vector<std::string>{"describe"});
  EXPECT_EQ(operation.elsewhere, Elsewhere::kPerhaps);
  EXPECT_EQ(operation.stopped, (std::vector<process::ProcessId>{{{4712}, 18}}));
}

TEST_F(JournalTest, AKilledOperationIsFoundWithItsState) {
  BeginAndDie("dump", 4711, /*commit=*/true);
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(100)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  const JournalEntry& entry = entries->front();
  EXPECT_TRUE(entry.lock.valid());
  EXPECT_TRUE(entry.readable);
  EXPECT_EQ(entry.operation.verb, "dump");
  EXPECT_EQ(entry.operation.image, "/images/x");
  EXPECT_TRUE(entry.operation.committed);
  EXPECT_EQ(entry.operation.phases_begun, std::vector<std::string>{"gpu-lock"});
  ASSERT_EQ(entry.operation.device_processes.size(), 1u);
  EXPECT_EQ(entry.operation.device_processes[0].initial, device::ProcessState::kRunning);
  EXPECT_TRUE(entry.operation.device_processes[0].context_kept);
  EXPECT_EQ(entry.operation.device_processes[0].away_bytes, 8192u);
  EXPECT_EQ(entry.operation.device_processes[0].gpus,
            (std::vector<device::GpuUuid>{{"GPU-1"}, {"GPU-2"}}));
  EXPECT_EQ(entry.operation.device_processes[0].device_bytes, 4096u);
}

TEST_F(JournalTest, APathThatIsNotUtf8IsUnchanged) {
  auto journal = Journal::Prepare(paths_, "dump");
  ASSERT_TRUE(journal);
  Operation operation = Make("dump", 4711);
  operation.image = "/images/caf\xe9";
  ASSERT_TRUE(journal->Begin(operation));
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_TRUE(entries->front().readable) << entries->front().problem;
  EXPECT_EQ(entries->front().operation.image, operation.image);
}

TEST_F(JournalTest, AnEntryOfAnotherPidNamespaceIsNotLocked) {
  BeginAndDie("dump", 4711, /*commit=*/false);
  std::string path = paths_.journal() + "/" + ListDir(paths_.journal())->front();
  auto fd = Open(path, O_WRONLY | O_APPEND);
  ASSERT_TRUE(fd);
  ASSERT_TRUE(WriteAll(fd->get(), "{\"note\":{\"pid_namespace\":1}}\n"));
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_TRUE(entries->front().foreign);
  EXPECT_FALSE(entries->front().lock.valid());
  // Process 4711 of that namespace is not process 4711 of this one.
  auto journal = Journal::Prepare(paths_, "suspend");
  ASSERT_TRUE(journal);
  EXPECT_TRUE(journal->Begin(Make("suspend", 4711)));
}

TEST_F(JournalTest, CheckNotUnderWayFailsOnlyDuringAnOperation) {
  process::ProcessId id{{4711}, 17};
  EXPECT_TRUE(CheckNotUnderWay(paths_, id));
  BeginAndDie("suspend", 4711, /*commit=*/false);
  EXPECT_TRUE(CheckNotUnderWay(paths_, id));
  std::string left = paths_.journal() + "/" + ListDir(paths_.journal())->front();
  ASSERT_EQ(::unlink(left.c_str()), 0);
  auto journal = Journal::Prepare(paths_, "dump");
  ASSERT_TRUE(journal);
  ASSERT_TRUE(journal->Begin(Make("dump", 4711)));
  Status refused = CheckNotUnderWay(paths_, id);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kAborted);
  EXPECT_TRUE(CheckNotUnderWay(paths_, {{4712}, 17}));
}

TEST_F(JournalTest, ASecondOperationOnTheSameProcessIsRefusedAndNamesTheFirst) {
  auto first = Journal::Prepare(paths_, "dump");
  ASSERT_TRUE(first);
  ASSERT_TRUE(first->Begin(Make("dump", 4711)));
  auto second = Journal::Prepare(paths_, "suspend");
  ASSERT_TRUE(second);
  Status refused = second->Begin(Make("suspend", 4711));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kAborted);
  EXPECT_NE(refused.error().message.find("a dump of job-a is under way"), std::string::npos);
  EXPECT_TRUE(second->Begin(Make("suspend", 4712))) << "no other operation works on this process";
  EXPECT_TRUE(first->Finish());
  EXPECT_TRUE(second->Finish());
}

TEST_F(JournalTest, AKilledOperationMustBeRecoveredFirst) {
  BeginAndDie("suspend", 4711, /*commit=*/false);
  auto journal = Journal::Prepare(paths_, "resume");
  ASSERT_TRUE(journal);
  Status refused = journal->Begin(Make("resume", 4711));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kFailedPrecondition);
}

TEST_F(JournalTest, AHelperThatHoldsTheLockKeepsTheEntryBusyUntilItEnds) {
  int ready[2], go[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  pid_t owner = ::fork();
  if (owner == 0) {
    auto journal = Journal::Prepare(paths_, "dump");
    if (!journal || !journal->Begin(Make("dump", 4711))) ::_exit(1);
    if (::fork() == 0) {  // the helper, with the lock's descriptor inherited
      ::close(go[1]);
      char c;
      (void)!::read(go[0], &c, 1);
      ::_exit(0);
    }
    (void)!::write(ready[1], "r", 1);
    ::kill(::getpid(), SIGKILL);
  }
  char c;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  ASSERT_EQ(::waitpid(owner, nullptr, 0), owner);
  auto busy = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(busy);
  ASSERT_EQ(busy->size(), 1u);
  EXPECT_FALSE(busy->front().lock.valid());
  for (int fd : {go[0], go[1]}) ::close(fd);  // the helper exits at end-of-file
  auto free = ScanJournal(paths_, Deadline::In(std::chrono::seconds(10)));
  ASSERT_TRUE(free);
  ASSERT_EQ(free->size(), 1u);
  EXPECT_TRUE(free->front().lock.valid());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(JournalTest, ADamagedEntryIsReportedAsUnreadable) {
  BeginAndDie("dump", 4711, /*commit=*/false);
  auto names = ListDir(paths_.journal());
  ASSERT_TRUE(names);
  ASSERT_EQ(names->size(), 1u);
  ASSERT_TRUE(WriteFileDurably(paths_.journal() + "/" + names->front(), "{\"version\": 99}\n"));
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_FALSE(entries->front().readable);
  EXPECT_FALSE(entries->front().problem.empty());
}

TEST_F(JournalTest, AnEntryThatIsNestedTooDeeplyIsDamaged) {
  BeginAndDie("dump", 4711, /*commit=*/false);
  auto names = ListDir(paths_.journal());
  ASSERT_TRUE(names && names->size() == 1);
  constexpr size_t kDepth = 500'000;
  std::string note;
  for (size_t i = 0; i < kDepth; ++i) note += "{\"note\":";
  note += "1" + std::string(kDepth, '}') + "\n";
  auto fd = Open(paths_.journal() + "/" + names->front(), O_WRONLY | O_APPEND);
  ASSERT_TRUE(fd && WriteAll(fd->get(), note));
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_FALSE(entries->front().readable);
  EXPECT_EQ(entries->front().problem, "it is nested too deeply");
}

TEST_F(JournalTest, ATornLastLineIsIgnored) {
  BeginAndDie("dump", 4711, /*commit=*/false);
  std::string path = paths_.journal() + "/" + ListDir(paths_.journal())->front();
  auto fd = Open(path, O_WRONLY | O_APPEND);
  ASSERT_TRUE(fd);
  ASSERT_TRUE(WriteAll(fd->get(), "{\"commi"));
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(50)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_TRUE(entries->front().readable);
  EXPECT_FALSE(entries->front().operation.committed);
}

TEST_F(JournalTest, AClaimRefusesOtherOperationsUntilItEnds) {
  Operation claimed = Make("dump", 4711);
  claimed.device_processes.clear();
  Operation more = claimed;
  more.members.push_back({{4712}, 18});
  {
    auto first = Journal::Prepare(paths_, "dump");
    auto second = Journal::Prepare(paths_, "suspend");
    ASSERT_TRUE(first && second);
    ASSERT_TRUE(first->Claim(claimed));
    Status refused = second->Claim(claimed);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kAborted);
    EXPECT_EQ(refused.error().message.find("a dump of job-a is under way"), 0u);
    EXPECT_FALSE(CheckNotUnderWay(paths_, {{4711}, 17}));
    EXPECT_TRUE(CheckNotUnderWay(paths_, {{4712}, 18}));
    ASSERT_TRUE(first->Claim(more));
    EXPECT_FALSE(CheckNotUnderWay(paths_, {{4712}, 18}));
    EXPECT_FALSE(second->Begin(Make("suspend", 4711)));
  }
  EXPECT_TRUE(ListDir(paths_.journal())->empty());
}

TEST_F(JournalTest, BeginReplacesTheHeaderOfTheClaim) {
  {
    auto journal = Journal::Prepare(paths_, "dump");
    Operation claimed = Make("dump", 4711);
    claimed.image = "";
    ASSERT_TRUE(journal && journal->Claim(claimed));
    ASSERT_TRUE(journal->Begin(Make("dump", 4711)));
  }
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(100)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ(entries->front().operation.image, "/images/x");
  EXPECT_EQ(entries->front().operation.device_processes.size(), 1u);
}

TEST_F(JournalTest, AKilledClaimIsFoundWithoutAPhase) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto journal = Journal::Prepare(paths_, "dump");
    if (!journal || !journal->Claim(Make("dump", 4711))) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  auto entries = ScanJournal(paths_, Deadline::In(milliseconds(100)));
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_TRUE(entries->front().lock.valid());
  EXPECT_TRUE(entries->front().operation.phases_begun.empty());
}

TEST_F(JournalTest, APreparedEntryThatDoesNotBeginLeavesNothing) {
  {
    auto journal = Journal::Prepare(paths_, "check");
    ASSERT_TRUE(journal);
  }
  EXPECT_TRUE(ListDir(paths_.journal())->empty());
}

}  // namespace
}  // namespace stasis::plan
