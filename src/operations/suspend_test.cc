// Suspend and resume with fake agents, movers and driver: the order of the phases, and every call
// that fails, hangs or loses a process.
#include "operations/suspend.h"

#include "operations/resume.h"
#include "operations/testing/stage.h"

namespace stasis::operations {
namespace {

using device::ProcessState;
using stasis::fakes::Agent;
using stasis::fakes::Fault;
using stasis::fakes::FaultCase;
using stasis::fakes::ForEachFault;
using stasis::fakes::GpuA;
using stasis::fakes::GpuB;
using stasis::fakes::Joined;
using stasis::fakes::Recover;
using stasis::fakes::Resume;
using stasis::fakes::Suspend;
using stasis::fakes::WhyNotSuspended;
using stasis::fakes::World;

// Process 1 has memory on two GPUs, process 2 on one; process 3 is left to the driver.
std::unique_ptr<World> ThreeProcesses() {
  auto world = std::make_unique<World>(3);
  world->program.AddAgent(1, 1, {GpuA(), GpuB()});
  world->program.AddAgent(2, 2);
  return world;
}

std::unique_ptr<World> Suspended() {
  auto world = ThreeProcesses();
  EXPECT_TRUE(Suspend(*world));
  return world;
}

std::vector<std::string> NamesOf(const OperationResult& result) {
  std::vector<std::string> names;
  for (const auto& phase : result.account.phases) names.push_back(phase.name);
  return names;
}

void ExpectOrder(World& world, const std::vector<std::string>& calls) {
  int last = -1;
  for (const auto& call : calls) {
    const int at = world.log.IndexOf(call);
    EXPECT_GT(at, last) << call << " in\n" << Joined(world.log.calls());
    last = std::max(at, last);
  }
}

const std::vector<Fault> kAllFaults = {Fault::kFail, Fault::kFailAfter, Fault::kHang, Fault::kKill};

TEST(SuspendTest, AllPathsLeaveTheGpuAndComeBack) {
  auto world = ThreeProcesses();
  auto done = Suspend(*world);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(WhyNotSuspended(*world), "");
  EXPECT_EQ(done->shared_bytes, 4 * stasis::fakes::kPiece);
  ASSERT_EQ(done->left_to_driver.size(), 1u);
  EXPECT_NE(done->left_to_driver[0].find("no agent in the program"), std::string::npos);
  ExpectOrder(*world, {"mover A Start", "agent 1 Close", "agent 1 ExportAll", "agent 1 Release",
                       "device Lock 1", "device Checkpoint 1", "agent 1 Commit"});
  EXPECT_GT(world->log.IndexOf("agent 2 Commit"), world->log.IndexOf("mover A Save"));
  EXPECT_GT(world->log.IndexOf("agent 1 Release"), world->log.IndexOf("agent 2 Close"))
      << "no memory is released before all gates are closed";

  world->log.Clear();
  auto back = Resume(*world);
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_TRUE(world->program.At(1).agent->imported);
  ExpectOrder(*world, {"mover B Start", "mover B PrepareLoad", "device Restore 1",
                       "device Unlock 1", "agent 1 Map", "agent 1 Open"});
  EXPECT_GT(world->log.IndexOf("device Restore 3"), world->log.IndexOf("mover A FreeBallast"))
      << "the ballast would be in the driver's way";
  EXPECT_GT(world->log.IndexOf("agent 1 Open"), world->log.IndexOf("agent 2 Map"))
      << "no program runs before all have their memory";
}

TEST(SuspendTest, ThePhasesOfEachPath) {
  const std::vector<std::string> kShared = {
      "data-room",         "gate-close", "tree-check",     "data-export", "gpu-control",
      "data-release",      "gpu-lock",   "gpu-checkpoint", "data-save",   "data-commit",
      "gpu-release-check", "record",     "data-free"};
  const std::vector<std::string> kKept = {"data-room",   "gate-close",   "tree-check",
                                          "data-export", "data-release", "data-save",
                                          "data-commit", "record",       "data-free"};
  const std::vector<std::string> kDriver = {"gpu-lock", "tree-check", "gpu-checkpoint",
                                            "gpu-release-check", "record"};
  for (const auto* wanted : {&kShared, &kKept, &kDriver}) {
    World world(1);
    if (wanted != &kDriver) world.program.AddAgent(1, 1);
    OperationOptions options;
    options.keep_context = wanted == &kKept;
    auto done = Suspend(world, options);
    ASSERT_TRUE(done) << done.error().ToString();
    auto names = NamesOf(*done);
    auto sorted = *wanted;
    std::sort(names.begin(), names.end());
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(names, sorted);
    EXPECT_EQ(WhyNotSuspended(world, options.keep_context), "");
    ASSERT_TRUE(Resume(world));
    EXPECT_EQ(world.WhyNotAsBefore(), "");
  }
}

// Checks that the program is as it was before the failed call, at the latest after `recover`, or
// that it is suspended and a resume returns all of its data.
std::string AfterSuspend(World& world, const FaultCase& fault,
                         const Result<OperationResult>& done) {
  if (!done && done.error().not_undone) {
    world.log.Unhang();
    auto [ok, outcomes] = Recover(world);
    if (!ok) return "recover: " + outcomes;
  }
  const std::string not_before = world.WhyNotAsBefore();
  if (!done && not_before.empty()) return "";
  const std::string not_suspended = WhyNotSuspended(world);
  if (!not_suspended.empty()) return not_before + "; " + not_suspended;
  if (fault.fault == Fault::kKill && !world.program.Alive(1)) return "";
  world.log.Unhang();
  auto back = Resume(world);
  return back ? world.WhyNotAsBefore() : "resume: " + back.error().ToString();
}

TEST(SuspendTest, EveryFaultIsUndoneOrTheProgramIsSuspended) {
  ForEachFault(
      ThreeProcesses, [](World& world) { return Suspend(world); }, kAllFaults, AfterSuspend);
}

// Checks that the program is still suspended if the resume did not commit, and that a second
// attempt succeeds. After the commit, or if memory was already returned, the program must be
// running.
std::string AfterResume(World& world, const FaultCase& fault, const Result<OperationResult>& done) {
  if (done) return world.WhyNotAsBefore();
  world.log.Unhang();
  if (done.error().not_undone) {
    auto [ok, outcomes] = Recover(world);
    if (!ok) return "recover: " + outcomes;
  }
  if (world.WhyNotAsBefore().empty()) return "";
  const std::string not_suspended = WhyNotSuspended(world);
  if (!not_suspended.empty()) return world.WhyNotAsBefore() + "; " + not_suspended;
  if (fault.fault == Fault::kKill && !world.program.Alive(1)) return "";
  auto back = Resume(world);
  return back ? world.WhyNotAsBefore() : "second resume: " + back.error().ToString();
}

TEST(ResumeTest, EveryFaultLeavesItSuspendedOrRunning) {
  ForEachFault(
      Suspended, [](World& world) { return Resume(world); }, kAllFaults, AfterResume);
}

TEST(SuspendTest, EveryFaultWithAKeptContextIsUndone) {
  auto prepare = [] {
    auto world = std::make_unique<World>(2);
    world->program.AddAgent(1, 1);
    world->program.AddAgent(2, 1);
    return world;
  };
  OperationOptions options;
  options.keep_context = true;
  ForEachFault(
      prepare, [&](World& world) { return Suspend(world, options); }, {Fault::kFail, Fault::kHang},
      [](World& world, const FaultCase&, const Result<OperationResult>& done) -> std::string {
        if (world.log.IndexOf("device Lock 1") >= 0) return "the driver was called";
        world.log.Unhang();
        if (!done && done.error().not_undone) (void)Recover(world);
        if (world.WhyNotAsBefore().empty()) return "";
        if (std::string why = WhyNotSuspended(world, true); !why.empty()) return why;
        auto back = Resume(world);
        return back ? world.WhyNotAsBefore() : back.error().ToString();
      });
}

TEST(SuspendTest, AFullSuspendUpgradesAKeptContext) {
  World world(1);
  world.program.AddAgent(1, 1);
  OperationOptions keep;
  keep.keep_context = true;
  ASSERT_TRUE(Suspend(world, keep));
  auto again = Suspend(world, keep);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->notes, std::vector<std::string>{"it was suspended already"});
  EXPECT_EQ(world.log.IndexOf("device Lock 1"), -1);
  auto full = Suspend(world);
  ASSERT_TRUE(full) << full.error().ToString();
  EXPECT_EQ(WhyNotSuspended(world), "");
  EXPECT_EQ(full->notes, std::vector<std::string>{
                             "its data had already left the GPU; now its context has left it too"});
  ASSERT_TRUE(Resume(world));
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

TEST(SuspendTest, AProgramWithoutDriverCheckpointKeepsItsContext) {
  World world(1);
  world.device->no_checkpoint = true;
  auto refused = Suspend(world);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnimplemented);
  EXPECT_NE(refused.error().message.find("only an agent can save"), std::string::npos);
  EXPECT_NE(refused.error().hint.find("stasis run"), std::string::npos);
  world.program.AddAgent(1, 1);
  auto done = Suspend(world);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_TRUE(done->keep_context);
  ASSERT_FALSE(done->notes.empty());
  EXPECT_NE(done->notes[0].find("its context stays on the GPU"), std::string::npos);
  EXPECT_EQ(world.log.IndexOf("device Lock 1"), -1);
  EXPECT_EQ(WhyNotSuspended(world, true), "");
  auto again = Suspend(world);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->notes.back(), "it was suspended already");
  ASSERT_TRUE(Resume(world));
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

TEST(SuspendTest, AKeptContextCannotMove) {
  World world(1);
  world.program.AddAgent(1, 1);
  OperationOptions keep;
  keep.keep_context = true;
  ASSERT_TRUE(Suspend(world, keep));
  auto moved = Resume(world, {.gpu_map = "0=1"});
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().code, Code::kFailedPrecondition);
  EXPECT_EQ(WhyNotSuspended(world, true), "");
}

TEST(ResumeTest, AMapMovesMemoryAndDriverState) {
  auto world = Suspended();
  world->log.Clear();
  auto back = Resume(*world, {.gpu_map = "0=1"});
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_EQ(world->device->last_map(), (device::GpuMap{{GpuA(), GpuB()}, {GpuB(), GpuA()}}));
}

struct Refusal {
  const char* name;
  std::function<void(World&)> arrange;
  Code code;
  const char* message;
  OperationOptions options = {};
};

OperationOptions KeepContext() {
  OperationOptions options;
  options.keep_context = true;
  return options;
}

class SuspendRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(SuspendRefusalTest, TouchesNothing) {
  World world(2);
  world.program.AddAgent(1, 1);
  world.program.AddAgent(2, 1);
  GetParam().arrange(world);
  std::vector<agent_protocol::State> before;
  for (const auto& process : world.program.processes()) {
    if (process->agent) before.push_back(process->agent->state);
  }
  auto done = Suspend(world, GetParam().options);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, GetParam().code) << done.error().ToString();
  EXPECT_NE(done.error().ToString().find(GetParam().message), std::string::npos)
      << done.error().ToString();
  size_t at = 0;
  for (const auto& process : world.program.processes()) {
    EXPECT_NE(process->state, ProcessState::kCheckpointed);
    if (!process->agent) continue;
    EXPECT_EQ(process->agent->state, before[at++]);
  }
  for (const auto& call : world.log.calls()) {
    EXPECT_EQ(call.find("Close"), std::string::npos) << call;
    EXPECT_FALSE(call.starts_with("device ")) << call;
  }
}

agent_protocol::IpcPeer PeerOf(int number, uint32_t role) {
  agent_protocol::IpcPeer peer{};
  peer.name = stasis::fakes::IpcName(number);
  peer.pid = 4711;
  peer.role = role;
  return peer;
}

const Refusal kRefusals[] = {
    {"NoGpuProcess",
     [](World& world) {
       for (auto& process : world.program.processes()) process->uses_gpu = false;
     },
     Code::kUnimplemented, "uses a GPU"},
    {"GpuStateFailed", [](World& world) { world.program.At(2).state = ProcessState::kFailed; },
     Code::kFailedPrecondition, "has failed"},
    {"IpcPeerOutside",
     [](World& world) {
       world.program.At(1).agent->peers = {PeerOf(9, agent_protocol::kIpcOwnsTheirs)};
     },
     Code::kUnimplemented, "does not take part"},
    {"IpcMemoryFreedByItsOwner",
     [](World& world) {
       world.program.At(1).agent->peers = {
           PeerOf(2, agent_protocol::kIpcUsesOurs | agent_protocol::kIpcFreedHere)};
     },
     Code::kUnimplemented, "has freed"},
    {"SharedHandlesPastTheAgent",
     [](World& world) {
       world.program.At(1).agent->blockers = agent_protocol::kBlockerSharedVmm;
       world.program.At(1).agent->blocker_text = "a handle is shared";
     },
     Code::kUnimplemented, "a handle is shared"},
    {"ImportedMemoryLeftToTheDriver",
     [](World& world) {
       world.program.At(1).agent->imported = true;
       world.program.At(1).agent->blockers = agent_protocol::kBlockerUnseenThread;
       world.program.At(1).agent->blocker_text = "no memory to note a call in";
     },
     Code::kUnimplemented, "that an earlier resume recreated"},
    {"TwoProcessesWithoutAgents",
     [](World& world) {
       for (auto& process : world.program.processes()) process->agent.reset();
     },
     Code::kUnimplemented, "shared GPU memory cannot be detected"},
    {"MemoryReleasedEarlier",
     [](World& world) { world.program.At(2).agent->state = agent_protocol::State::kReleased; },
     Code::kFailedPrecondition, "has not been restored"},
    {"KeptContextWithoutAgent", [](World& world) { world.program.At(2).agent.reset(); },
     Code::kUnimplemented, "only an agent can save its memory", KeepContext()},
    {"KeptContextOfALockedProcess",
     [](World& world) { world.program.At(2).state = ProcessState::kLocked; },
     Code::kFailedPrecondition, "only an agent can save its memory", KeepContext()},
    {"AgentDoesNotAnswer",
     [](World& world) { world.log.Set("agent 2 Connect", stasis::fakes::Fault::kHang, 2); },
     Code::kDeadlineExceeded, "agent 2 Connect hangs"},
};

INSTANTIATE_TEST_SUITE_P(All, SuspendRefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SuspendTest, IpcPeersReleaseAndRejoinTogether) {
  World world(2);
  Agent& owner = world.program.AddAgent(1, 1);
  Agent& user = world.program.AddAgent(2, 1);
  owner.peers = {PeerOf(2, agent_protocol::kIpcUsesOurs)};
  user.peers = {PeerOf(1, agent_protocol::kIpcOwnsTheirs)};
  user.ipc_ranges = 1;
  ASSERT_TRUE(Suspend(world));
  EXPECT_GE(world.log.IndexOf("agent 1 CloseInSteps"), 0) << "they may wait for each other";
  EXPECT_FALSE(user.joined);
  world.log.Clear();
  ASSERT_TRUE(Resume(world));
  EXPECT_EQ(world.WhyNotAsBefore(), "");
  ExpectOrder(world, {"agent 1 Map", "agent 2 Rejoin", "agent 1 Open"});
  EXPECT_EQ(world.log.IndexOf("agent 1 Rejoin"), -1) << "it has nothing of others";
}

TEST(SuspendTest, MemoryOnANewGpuWhileItStopsIsAbortedAndUndone) {
  World world(1);
  Agent& agent = world.program.AddAgent(1, 1);
  OperationOptions options;
  options.progress.begin = [&](const std::string& phase) {
    if (phase != "data-export") return;
    std::lock_guard lock(world.program.mutex);
    agent.gpus[0] = GpuB();
  };
  auto done = Suspend(world, options);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kAborted) << done.error().ToString();
  agent.gpus[0] = GpuA();
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

TEST(SuspendTest, ANewGpuProcessIsAChangedTreeAndUndone) {
  World world(1);
  world.program.AddAgent(1, 1);
  OperationOptions options;
  options.progress.begin = [&](const std::string& phase) {
    if (phase == "gate-close") world.program.AddProcess();
  };
  auto done = Suspend(world, options);
  ASSERT_FALSE(done);
  EXPECT_TRUE(checks::TreeHasChanged(done.error())) << done.error().ToString();
  EXPECT_NE(done.error().message.find("began to use a GPU"), std::string::npos);
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

TEST(SuspendTest, FilesOfTheGpuThatStayAreRefusedAndUndone) {
  World world(1);
  world.program.AddAgent(1, 1);
  world.program.At(1).files_held = {"fd 7 -> /dev/nvidiactl"};
  auto done = Suspend(world);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kUnimplemented);
  EXPECT_NE(done.error().message.find("fd 7 -> /dev/nvidiactl"), std::string::npos);
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

TEST(SuspendTest, CancelledBeforeTheCommitIsUndone) {
  World world(1);
  world.program.AddAgent(1, 1);
  OperationOptions options;
  options.cancelled = [&] { return world.log.IndexOf("agent 1 Commit") >= 0; };
  auto done = Suspend(world, options);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kCancelled);
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

TEST(SuspendTest, ADryRunCallsOnlyConnect) {
  World world(1);
  world.program.AddAgent(1, 1);
  OperationOptions options;
  options.dry_run = true;
  auto done = Suspend(world, options);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->planned_phases.front(), "data-room");
  EXPECT_EQ(done->planned_phases.back(), "data-free");
  for (const auto& call : world.log.calls()) EXPECT_EQ(call, "agent 1 Connect");
  EXPECT_EQ(world.WhyNotAsBefore(), "");
}

TEST(ResumeTest, RoomIsCheckedFirstAndIdleMoversGiveWay) {
  auto world = Suspended();
  world->log.Clear();
  for (auto& gpu : world->device->gpus) gpu.free_bytes = 1 << 20;
  auto full = Resume(*world);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kResourceExhausted) << full.error().ToString();
  EXPECT_EQ(WhyNotSuspended(*world), "");
  EXPECT_EQ(world->log.IndexOf("device Restore 3"), -1);
  EXPECT_GE(world->log.IndexOf("movers StopIdle"), 0);
}

TEST(ResumeTest, AMoverWithoutRoomLeavesItSuspended) {
  auto world = Suspended();
  world->movers->MoverOf(GpuA()).SetRoom(1 << 20);
  auto full = Resume(*world);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kResourceExhausted) << full.error().ToString();
  EXPECT_EQ(WhyNotSuspended(*world), "");
  world->movers->MoverOf(GpuA()).SetRoom(80ull << 30);
  ASSERT_TRUE(Resume(*world));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST(ResumeTest, AMoverThatHangsInTheUndoIsNoFailureOfIt) {
  auto world = Suspended();
  world->log.Clear();
  world->log.Set("device Restore 1", Fault::kFail);
  for (int i = 1; i <= 9; ++i) world->log.Set("mover A Release", Fault::kHang, i);
  auto failed = Resume(*world);
  ASSERT_FALSE(failed);
  EXPECT_FALSE(failed.error().not_undone) << failed.error().ToString();
  EXPECT_EQ(WhyNotSuspended(*world), "");
  world->log.Clear();
  ASSERT_TRUE(Resume(*world));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST(ResumeTest, TheRestFollowsWhenAPartHasItsMemory) {
  auto world = Suspended();
  world->log.Clear();
  world->log.Set("agent 2 Map", Fault::kFail);
  auto failed = Resume(*world);
  ASSERT_FALSE(failed);
  EXPECT_TRUE(failed.error().not_undone) << failed.error().ToString();
  EXPECT_NE(failed.error().message.find("The other processes are running"), std::string::npos)
      << failed.error().ToString();
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST(ResumeTest, AnotherDriverIsRefused) {
  auto world = Suspended();
  world->device->driver.version = "2";
  auto refused = Resume(*world);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnimplemented);
  EXPECT_NE(refused.error().message.find("fake 1"), std::string::npos) << refused.error().message;
  EXPECT_EQ(WhyNotSuspended(*world), "");
}

TEST(ResumeTest, ARunningProgramIsASuccessWithANote) {
  auto world = ThreeProcesses();
  auto done = Resume(*world);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(done->notes, std::vector<std::string>{"it was running already"});
}

TEST(ResumeTest, MemoryFollowsADriverStateThatAnotherToolRestored) {
  auto world = Suspended();
  for (auto& process : world->program.processes()) process->state = ProcessState::kRunning;
  auto done = Resume(*world);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

}  // namespace
}  // namespace stasis::operations
