// Recovery of interrupted operations: a world in the state that a killed command left, and its
// journal entry.
#include "operations/recover.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "checkpoint/teardown.h"
#include "gpu_state/shared_resume.h"
#include "operations/testing/stage.h"

namespace stasis::operations {
namespace {

using device::ProcessState;
using fakes::Recover;
using fakes::Resume;
using fakes::Suspend;
using fakes::WhyNotSuspended;
using fakes::World;

struct Interrupted {
  const char* verb;
  std::vector<std::string> phases;  // begun and ended
  bool committed = false;
  bool leave_running = false;
};

// Writes the journal entry of a killed command. `recorded` are the states before the command.
plan::Operation WriteEntry(World& world, const Interrupted& what,
                           std::vector<plan::RecordedProcess> recorded,
                           const std::function<void(plan::Operation&)>& change = {}) {
  auto journal = plan::Journal::Prepare(world.services.paths, what.verb);
  EXPECT_TRUE(journal);
  plan::Operation operation;
  operation.verb = what.verb;
  operation.target = "target";
  operation.boot_id = *process::BootId();
  operation.owner = process::ReadStat({::getpid()})->id;
  for (const auto& process : world.program.processes()) operation.members.push_back(process->id);
  operation.device_processes = std::move(recorded);
  operation.leave_running = what.leave_running;
  if (change) change(operation);
  EXPECT_TRUE(journal->Begin(operation));
  EXPECT_TRUE(journal->NoteElsewhere(operation.elsewhere));
  EXPECT_TRUE(journal->NoteStopped(operation.stopped));
  for (const auto& phase : what.phases) {
    EXPECT_TRUE(journal->PhaseBegins(phase));
    EXPECT_TRUE(journal->PhaseEnded(phase));
  }
  if (what.committed) {
    EXPECT_TRUE(journal->Commit());
  }
  return operation;
}

std::vector<plan::RecordedProcess> As(ProcessState state, std::vector<plan::RecordedProcess> all) {
  for (auto& process : all) process.initial = state;
  return all;
}

bool HasEntries(World& world) {
  auto names = ListDir(world.services.paths.journal());
  return names && !names->empty();
}

struct Case {
  const char* name;
  Interrupted what;
  // Brings the world into the state that the killed command left. The program is running when this
  // is called.
  std::function<void(World&)> arrange;
  ProcessState recorded;
  bool suspended;  // the program is suspended afterwards; otherwise it runs
  const char* outcome;
};

void FullySuspended(World& world) { ASSERT_TRUE(Suspend(world)); }

// Creates the state after a suspend, but without the suspend's records.
void TakenAwayByADump(World& world) {
  FullySuspended(world);
  for (const auto& process : world.program.processes()) {
    ASSERT_TRUE(gpu_state::ForgetSuspended(world.services.paths, process->id));
  }
}

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const Case kCases[] = {
    {"SuspendThatHadNotBegun",
     {"suspend", {}},
     [](World&) {},
     ProcessState::kRunning,
     false,
     "had not changed anything"},
    {"SuspendAfterTheLock",
     {"suspend", {"data-room", "gate-close", "gpu-lock"}},
     [](World& world) {
       for (auto& process : world.program.processes()) process->state = ProcessState::kLocked;
     },
     ProcessState::kRunning,
     false,
     "undone: the program is as it was before"},
    {"SuspendAfterDataCommit",
     {"suspend", {"data-room", "data-commit"}},
     FullySuspended,
     ProcessState::kRunning,
     false,
     "undone: the program is as it was before"},
    {"SuspendAfterTheCommit",
     {"suspend", {"record"}, true},
     FullySuspended,
     ProcessState::kRunning,
     true,
     "finished: the program is suspended"},
    {"ResumeBeforeAnything",
     {"resume", {"load-room"}},
     FullySuspended,
     ProcessState::kCheckpointed,
     true,
     "undone: the program is as it was before"},
    {"ResumeAfterTheDriver",
     {"resume", {"load-room", "gpu-restore", "gpu-unlock"}},
     [](World& world) {
       FullySuspended(world);
       for (auto& process : world.program.processes()) process->state = ProcessState::kRunning;
     },
     ProcessState::kCheckpointed,
     true,
     "undone: the program is as it was before"},
    {"ResumeWithAPartOfTheMemory",
     {"resume", {"load-room", "gpu-restore", "gpu-unlock"}},
     [](World& world) {
       FullySuspended(world);
       for (auto& process : world.program.processes()) process->state = ProcessState::kRunning;
       // The command died while it was returning the memory: only process 1 has its memory back.
       world.log.Set("agent 2 Map", fakes::Fault::kFail);
       gpu_state::SharedResume path(world.services, {});
       ASSERT_TRUE(path.FindArenas(world.Record()));
       ASSERT_FALSE(path.RunAll(Deadline()));
     },
     ProcessState::kCheckpointed,
     false,
     "finished: the program is running"},
    {"ResumeAfterTheCommit",
     {"resume", {"data-return"}, true},
     [](World& world) {
       FullySuspended(world);
       for (auto& process : world.program.processes()) process->state = ProcessState::kLocked;
     },
     ProcessState::kCheckpointed,
     false,
     "finished: the program is running"},
    {"DumpBeforeItsImage",
     {"dump", {"image-begin", "gpu-lock"}},
     [](World& world) {
       for (auto& process : world.program.processes()) process->state = ProcessState::kLocked;
     },
     ProcessState::kRunning,
     false,
     "undone: the program is as it was before"},
    {"DumpWhosePluginHasStoppedTheQueues",
     {"dump", {"image-begin", "cpu-dump"}},
     [](World& world) {
       for (auto& process : world.program.processes()) process->queues_stopped = true;
     },
     ProcessState::kRunning,
     false,
     "undone: the program is as it was before"},
    {"CompleteDumpWhosePluginHasStoppedTheQueues",
     {"dump", {"cpu-dump", "commit"}, true},
     [](World& world) {
       for (auto& process : world.program.processes()) process->queues_stopped = true;
     },
     ProcessState::kRunning,
     false,
     "the program was not ended"},
    {"DumpOfASuspendedProgram",
     {"dump", {"image-begin"}},
     FullySuspended,
     ProcessState::kCheckpointed,
     true,
     "undone: the program is as it was before"},
    {"DumpThatHadNotBegunToEndTheProgram",
     {"dump", {"commit"}, true},
     TakenAwayByADump,
     ProcessState::kRunning,
     false,
     "the program was not ended"},
    {"DumpThatLeavesItRunning",
     {"dump", {"commit"}, true, true},
     TakenAwayByADump,
     ProcessState::kRunning,
     false,
     "is complete"},
};

class RecoverTest : public testing::TestWithParam<Case> {};

TEST_P(RecoverTest, FinishesOrUndoes) {
  const Case& c = GetParam();
  World world(2);
  world.program.AddAgent(1, 1);
  world.program.AddAgent(2, 1);
  const auto recorded = As(c.recorded, world.Record());
  ASSERT_NO_FATAL_FAILURE(c.arrange(world));
  WriteEntry(world, c.what, recorded);
  auto [ok, outcome] = Recover(world);
  EXPECT_TRUE(ok) << outcome;
  EXPECT_NE(outcome.find(c.outcome), std::string::npos) << outcome;
  EXPECT_FALSE(HasEntries(world));
  if (!c.suspended) {
    EXPECT_EQ(world.WhyNotAsBefore(), "");
    return;
  }
  EXPECT_EQ(WhyNotSuspended(world), "");
  auto back = Resume(world);
  EXPECT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

INSTANTIATE_TEST_SUITE_P(All, RecoverTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RecoverTableTest, AnEndedProcessIsNamedAndTheOthersAreReturned) {
  World world(2);
  const auto recorded = world.Record();
  for (auto& process : world.program.processes()) process->state = ProcessState::kLocked;
  WriteEntry(world, {"suspend", {"gpu-lock"}}, recorded);
  world.program.Kill(2);
  auto [ok, outcome] = Recover(world);
  EXPECT_TRUE(ok) << outcome;
  EXPECT_NE(outcome.find("the rest of the program is as it was before"), std::string::npos)
      << outcome;
  EXPECT_EQ(world.program.WhyNotRunning(1), "");
}

TEST(RecoverTableTest, AFailureKeepsTheEntryForTheNextAttempt) {
  World world(1);
  const auto recorded = world.Record();
  world.program.At(1).state = ProcessState::kLocked;
  WriteEntry(world, {"suspend", {"gpu-lock"}}, recorded);
  world.log.Set("device Unlock 1", fakes::Fault::kFail);
  EXPECT_FALSE(Recover(world).first);
  EXPECT_TRUE(HasEntries(world));
  EXPECT_TRUE(Recover(world).first);
  EXPECT_FALSE(HasEntries(world));
  EXPECT_EQ(world.program.WhyNotRunning(1), "");
}

// A program whose first process ended, perhaps by the dump, is never ended on a guess.
TEST(RecoverTableTest, ADumpWhoseFirstProcessEndedLeavesTheRest) {
  World world(2);
  const auto recorded = world.Record();
  WriteEntry(world, {"dump", {"commit"}, true}, recorded, [&](plan::Operation& operation) {
    std::swap(operation.members[0], operation.members[1]);
  });
  world.program.Kill(2);
  auto [ok, outcome] = Recover(world);
  EXPECT_TRUE(ok) << outcome;
  EXPECT_NE(outcome.find("by this dump or by itself"), std::string::npos) << outcome;
  EXPECT_EQ(world.program.WhyNotRunning(1), "");
}

// A dump that moves the program to another host. `at` is the journal's note about whether the
// program may run there.
std::pair<bool, std::string> RecoverMoved(World& world, plan::Elsewhere at) {
  WriteEntry(world, {"dump", {"commit", "hand-over", "stop"}}, world.Record(),
             [&](plan::Operation& operation) {
               operation.elsewhere = at;
               operation.stopped = {operation.members.front()};
             });
  for (const auto& process : world.program.processes()) {
    EXPECT_EQ(::kill(process->id.pid.value, SIGSTOP), 0);
    // A process stops some time after the signal.
    const auto state = [&] { return process::ReadStat(process->id.pid)->state; };
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (state() != 'T' && std::chrono::steady_clock::now() < until) ::usleep(1000);
  }
  return Recover(world);
}

TEST(RecoverTableTest, AProgramThatStaysIsContinuedButForStoppedProcesses) {
  World world(2);
  auto [ok, outcome] = RecoverMoved(world, plan::Elsewhere::kNo);
  EXPECT_TRUE(ok) << outcome;
  EXPECT_NE(outcome.find("the program is as it was before"), std::string::npos) << outcome;
  EXPECT_EQ(world.program.WhyNotRunning(1), "");
  const auto& processes = world.program.processes();
  EXPECT_NE(process::ReadStat(processes[0]->id.pid)->state, 'T');
  EXPECT_EQ(process::ReadStat(processes[1]->id.pid)->state, 'T') << "the user had stopped it";
}

TEST(RecoverTableTest, AProgramThatMayRunElsewhereIsEnded) {
  for (auto [at, words] : {std::pair{plan::Elsewhere::kPerhaps, ", which is complete"},
                           std::pair{plan::Elsewhere::kYes, "is running on the other host"}}) {
    World world(2);
    auto [ok, outcome] = RecoverMoved(world, at);
    EXPECT_TRUE(ok) << outcome;
    EXPECT_NE(outcome.find(words), std::string::npos) << outcome;
    for (const auto& process : world.program.processes()) {
      EXPECT_FALSE(process::IsAlive(process->id));
    }
  }
}

TEST(RecoverTableTest, ADumpThatEndedEverythingIsFinished) {
  World world(1);
  WriteEntry(world, {"dump", {"commit"}, true}, world.Record());
  world.program.Kill(1);
  auto [ok, outcome] = Recover(world);
  EXPECT_TRUE(ok);
  EXPECT_EQ(outcome, "finished: the image  is complete\n");
}

TEST(RecoverTableTest, AnUncommittedRestoreIsKilled) {
  World world(1);
  fakes::Sleepers shim(1);
  WriteEntry(world, {"restore", {"cpu-restore"}}, {}, [&](plan::Operation& operation) {
    operation.restored_shim = shim.Tree().root().id;
    operation.restored_root = world.program.root();
  });
  auto [ok, outcome] = Recover(world);
  EXPECT_TRUE(ok) << outcome;
  EXPECT_NE(outcome.find("undone: the half-restored program was ended"), std::string::npos);
  EXPECT_FALSE(world.program.Alive(1));
}

TEST(RecoverTableTest, ACommittedRestoreRuns) {
  World world(1);
  WriteEntry(world, {"restore", {"adopt"}, true}, {},
             [&](plan::Operation& operation) { operation.restored_root = world.program.root(); });
  auto [ok, outcome] = Recover(world);
  EXPECT_TRUE(ok) << outcome;
  EXPECT_NE(outcome.find("finished: the program is running as process"), std::string::npos)
      << outcome;
  EXPECT_TRUE(world.program.Alive(1));
}

TEST(RecoverTableTest, AnUnknownOperationIsLeftToTheVersionThatWroteIt) {
  World world(1);
  WriteEntry(world, {"migrate", {"copy"}}, world.Record());
  EXPECT_FALSE(Recover(world).first);
  EXPECT_TRUE(HasEntries(world));
}

TEST(RecoverTableTest, AnotherBootHasLeftFilesOnly) {
  World world(1);
  const auto recorded = world.Record();
  world.program.At(1).state = ProcessState::kLocked;
  auto operation = WriteEntry(world, {"dump", {"gpu-lock"}}, recorded,
                              [](plan::Operation& op) { op.boot_id = "another"; });
  const std::string work = checkpoint::WorkFolder(world.services.paths, operation.owner);
  ASSERT_TRUE(MakeDirs(work));
  auto [ok, outcome] = Recover(world);
  EXPECT_TRUE(ok) << outcome;
  EXPECT_NE(outcome.find("restarted since"), std::string::npos);
  EXPECT_FALSE(PathExists(work));
  EXPECT_EQ(world.program.At(1).state, ProcessState::kLocked);
}

TEST(RecoverTableTest, AnOperationThatIsUnderWayIsNotTouched) {
  World world(1);
  auto journal = plan::Journal::Prepare(world.services.paths, "dump");
  ASSERT_TRUE(journal);
  plan::Operation operation;
  operation.verb = "dump";
  operation.boot_id = *process::BootId();
  operation.owner = process::ReadStat({::getpid()})->id;
  operation.device_processes = world.Record();
  operation.members = {world.program.root()};
  ASSERT_TRUE(journal->Begin(operation));
  world.program.At(1).state = ProcessState::kLocked;
  auto report = operations::Recover(world.services, Deadline::In(std::chrono::milliseconds(1)));
  ASSERT_TRUE(report);
  ASSERT_EQ(report->size(), 1u);
  EXPECT_TRUE(report->front().under_way);
  EXPECT_EQ(world.program.At(1).state, ProcessState::kLocked);
  auto refused = Suspend(world);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kAborted) << refused.error().ToString();
}

}  // namespace
}  // namespace stasis::operations
