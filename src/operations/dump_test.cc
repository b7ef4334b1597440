// Dumps with a fake CRIU, into a real store.
#include "operations/dump.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/cpu_room.h"
#include "operations/dump_run.h"
#include "operations/testing/stage.h"
#include "store/image_reader.h"
#include "store/limits.h"

namespace stasis::operations {
namespace {

using fakes::Fault;
using fakes::FaultCase;
using fakes::ForEachFault;
using fakes::Recover;
using fakes::World;

struct DumpWorld : World {
  explicit DumpWorld(int processes) : World(processes) {}
  std::string store() const { return services.paths.images(); }
  std::string image() const { return store() + "/name"; }
  bool HasImage() const { return PathExists(image() + "/" + store::kManifestName); }
  // Returns the names of all entries of the store except the image.
  std::vector<std::string> Leftovers() const {
    std::vector<std::string> found;
    for (auto& name : ListDir(store()).value_or(std::vector<std::string>())) {
      if (name != "name" && name != ".lock") found.push_back(name);
    }
    return found;
  }
};

std::unique_ptr<World> TwoProcesses() {
  auto world = std::make_unique<DumpWorld>(2);
  world->program.AddAgent(1, 2);
  return world;
}

Result<OperationResult> RunDump(World& world, bool leave_running = false, size_t cpu_pages = 1,
                                bool cpu_memory_to_store = false) {
  Session session = fakes::MakeSession(world, "dump");
  session.cpu_memory_to_store = cpu_memory_to_store;
  auto criu = std::make_shared<fakes::FakeCriu>(world.program, world.log);
  criu->page_count = cpu_pages;
  session.criu = criu;
  DumpOptions dump;
  dump.store = world.services.paths.images();
  dump.name = "name";
  dump.leave_running = leave_running;
  return Dump(session, fakes::TargetOf(world), dump, {});
}

TEST(DumpTest, TheImageIsCompleteBeforeTheProgramIsKilled) {
  auto world = TwoProcesses();
  auto& dumped = static_cast<DumpWorld&>(*world);
  bool complete = false;
  Session session = fakes::MakeSession(*world, "dump");
  OperationOptions options;
  options.progress.end = [&](const plan::PhaseReport& phase) {
    if (phase.name == "commit") complete = dumped.HasImage() && world->program.Alive(1);
  };
  DumpOptions dump;
  dump.store = dumped.store();
  dump.name = "name";
  auto done = Dump(session, fakes::TargetOf(*world), dump, options);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_TRUE(complete);
  EXPECT_FALSE(world->program.Alive(1));
  EXPECT_FALSE(world->program.Alive(2));
  EXPECT_TRUE(dumped.Leftovers().empty());
  auto reader = store::ImageReader::Open(dumped.image());
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_EQ((*reader)->manifest().ranges.size(), 2u);
  EXPECT_EQ((*reader)->manifest().processes.size(), 2u);
  EXPECT_FALSE(world->movers->hold_memory());
}

TEST(DumpTest, WithLeaveRunningItRunsWithItsMemoryBeforeTheImageIsWritten) {
  auto world = TwoProcesses();
  auto& dumped = static_cast<DumpWorld&>(*world);
  auto done = RunDump(*world, /*leave_running=*/true);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_TRUE(dumped.HasImage());
  EXPECT_TRUE(dumped.Leftovers().empty());
  EXPECT_GT(done->pause_s, 0);
}

// CRIU needs time before it stops the program, and the program does not wait for that.
TEST(DumpTest, CriuIsReadyBeforeTheProgramIsStopped) {
  for (bool leave_running : {false, true}) {
    auto world = TwoProcesses();
    ASSERT_TRUE(RunDump(*world, leave_running));
    const int ready = world->log.IndexOf("criu Prepare");
    EXPECT_GE(ready, 0);
    EXPECT_LT(ready, world->log.IndexOf("agent 1 Close"));
    EXPECT_EQ(world->log.Count("criu Cancel"), 0);
  }
}

TEST(DumpTest, APreparedCriuEndsWhenTheProgramCannotBeStopped) {
  for (bool leave_running : {false, true}) {
    auto world = TwoProcesses();
    world->log.Set("device Checkpoint 1", Fault::kFail);
    EXPECT_FALSE(RunDump(*world, leave_running));
    EXPECT_EQ(world->log.Count("criu Cancel"), 1);
    EXPECT_EQ(world->log.Count("criu Dump"), 0);
    EXPECT_EQ(world->WhyNotAsBefore(), "");
  }
}

// Returns the names of an image's files of CPU memory: those stored as pages, and the others.
std::pair<std::vector<std::string>, std::vector<std::string>> FilesOfPages(
    const std::string& image) {
  auto reader = store::ImageReader::Open(image);
  EXPECT_TRUE(reader) << reader.error().ToString();
  std::vector<std::string> pages, files;
  for (const auto& file : (*reader)->manifest().page_files) {
    pages.push_back(file.path);
    EXPECT_EQ(file.size_bytes, fakes::FakeCriuDump::Pages(1).size());
  }
  for (const auto& file : (*reader)->manifest().files) {
    if (file.path.starts_with("cpu/pages-")) files.push_back(file.path);
  }
  return {pages, files};
}

TEST(DumpTest, WithLeaveRunningCpuMemoryIsReceivedInMemory) {
  for (bool leave_running : {false, true}) {
    auto world = TwoProcesses();
    auto& dumped = static_cast<DumpWorld&>(*world);
    bool in_folder = true;
    Session session = fakes::MakeSession(*world, "dump");
    OperationOptions options;
    options.progress.end = [&](const plan::PhaseReport& phase) {
      if (phase.name != "describe") return;
      const std::string hidden = dumped.store() + "/" + dumped.Leftovers().at(0);
      in_folder = !ReadLink(hidden + "/criu/pages-1.img");
    };
    DumpOptions dump;
    dump.store = dumped.store();
    dump.name = "name";
    dump.leave_running = leave_running;
    auto done = Dump(session, fakes::TargetOf(*world), dump, options);
    ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
    for (const std::string& note : done->notes) {
      EXPECT_EQ(note.find("CPU memory"), std::string::npos) << note;
    }
    EXPECT_EQ(in_folder, !leave_running);
    const auto [pages, files] = FilesOfPages(dumped.image());
    EXPECT_EQ(pages, std::vector<std::string>{"cpu/pages-1.img"});
    EXPECT_TRUE(files.empty()) << files.front();
    EXPECT_TRUE(dumped.Leftovers().empty());
  }
}

// The dump is repeated, and CRIU writes to the store.
TEST(DumpTest, AProgramThatGrowsBeyondTheReservedMemoryRunsOn) {
  auto world = TwoProcesses();
  auto& dumped = static_cast<DumpWorld&>(*world);
  ::signal(SIGPIPE, SIG_IGN);  // as in CRIU
  process::ProcessTree tree;
  uint64_t device_bytes = 0;
  for (const auto& process : world->program.processes()) {
    tree.members.push_back(*process::ReadStat(process->id.pid));
    device_bytes += process->device_bytes;
  }
  const auto need = checkpoint::NeededCpuRoom(tree, device_bytes);
  const size_t pages = need.most_bytes / 4096 + (32 << 8);
  auto failed = RunDump(*world, /*leave_running=*/true, pages);
  ASSERT_FALSE(failed);
  EXPECT_TRUE(checks::IsCpuMemoryNotReceived(failed.error())) << failed.error().ToString();
  EXPECT_FALSE(failed.error().not_undone);
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_FALSE(dumped.HasImage());
  EXPECT_TRUE(dumped.Leftovers().empty());
  auto done = RunDump(*world, /*leave_running=*/true, pages, /*cpu_memory_to_store=*/true);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_TRUE(dumped.HasImage());
}

// The driver of HIP cannot checkpoint: agents and movers take the data, and CRIU's plugin the rest.
std::unique_ptr<World> TwoProcessesOfHip() {
  auto world = TwoProcesses();
  world->program.AddAgent(2, 1);
  world->device->no_checkpoint = true;
  world->device->driver = {.kind = "softgpu-hip", .version = "1"};
  return world;
}

TEST(DumpTest, AProgramOfHipIsDumpedWithoutItsDriver) {
  auto world = TwoProcessesOfHip();
  auto& dumped = static_cast<DumpWorld&>(*world);
  auto done = RunDump(*world);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_FALSE(world->program.Alive(1));
  for (const char* step : {"Lock", "Checkpoint", "Restore", "Unlock"}) {
    EXPECT_EQ(world->log.Count(std::string("device ") + step + " 1"), 0) << step;
  }
  auto reader = store::ImageReader::Open(dumped.image());
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_EQ((*reader)->manifest().software.driver_kind, "softgpu-hip");
  EXPECT_EQ((*reader)->manifest().ranges.size(), 3u);
}

TEST(DumpTest, AProgramOfHipGoesOnWithLeaveRunning) {
  auto world = TwoProcessesOfHip();
  auto done = RunDump(*world, /*leave_running=*/true);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

// CRIU does not notice it, and would end the program.
TEST(DumpTest, AProgramOfHipWhoseGpuStateIsNotSavedGoesOn) {
  for (bool leave_running : {false, true}) {
    auto world = TwoProcessesOfHip();
    world->log.Set("criu Plugin", Fault::kFail);
    auto failed = RunDump(*world, leave_running);
    ASSERT_FALSE(failed);
    EXPECT_NE(failed.error().message.find("saved the GPU state of 0 of 2 processes"),
              std::string::npos)
        << failed.error().message;
    EXPECT_FALSE(failed.error().not_undone);
    EXPECT_EQ(world->WhyNotAsBefore(), "");
  }
}

TEST(DumpTest, QueuesThatStayStoppedAreReported) {
  auto world = TwoProcessesOfHip();
  world->log.Set("criu Write", Fault::kFail);
  world->log.Set("device ContinueQueues 2", Fault::kFail);
  auto failed = RunDump(*world);
  ASSERT_FALSE(failed);
  EXPECT_TRUE(failed.error().not_undone);
  EXPECT_NE(failed.error().hint.find("undoing cpu-dump: "), std::string::npos)
      << failed.error().hint;
  auto [ok, outcomes] = Recover(*world);
  EXPECT_TRUE(ok) << outcomes;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST(DumpTest, AProgramOfHipNeedsItsLibrary) {
  auto world = TwoProcessesOfHip();
  world->device->driver.kind = "fake";
  auto refused = RunDump(*world);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnimplemented);
  EXPECT_NE(refused.error().hint.find("STASIS_CUDA_LIBRARY"), std::string::npos);
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST(DumpTest, ASuspendedProgramIsDumpedFromItsArenas) {
  for (bool leave_running : {false, true}) {
    auto world = TwoProcesses();
    ASSERT_TRUE(fakes::Suspend(*world));
    auto done = RunDump(*world, leave_running);
    ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
    EXPECT_EQ(world->log.Count("agent 1 Close"), 1);
    EXPECT_EQ(world->program.Alive(1), leave_running);
    if (!leave_running) continue;
    EXPECT_EQ(fakes::WhyNotSuspended(*world), "");
    ASSERT_TRUE(fakes::Resume(*world));
    EXPECT_EQ(world->WhyNotAsBefore(), "");
  }
}

// Either an image exists and the program has ended, or no image exists and the program is as it was
// before the dump.
std::string AfterDump(World& world, const FaultCase& fault, const Result<OperationResult>& done) {
  auto& dumped = static_cast<DumpWorld&>(world);
  if (!done && done.error().not_undone) {
    world.log.Unhang();
    auto [ok, outcomes] = Recover(world);
    if (!ok) return "recover: " + outcomes;
  }
  if (!dumped.Leftovers().empty()) return "left in the store: " + dumped.Leftovers().front();
  const bool alive = world.program.Alive(1);
  if (done && !dumped.HasImage()) return "no image";
  if (!done && dumped.HasImage() && fault.call != "criu End" && fault.call != "criu Dump") {
    return "an image of a failed dump";
  }
  if (!alive) {
    return dumped.HasImage() || fault.fault == Fault::kKill ? "" : "the program was lost";
  }
  return world.WhyNotAsBefore();
}

TEST(DumpTest, EveryFaultCostsTheImageAndNeverTheProgram) {
  ForEachFault(
      TwoProcesses, [](World& world) { return RunDump(world); },
      {Fault::kFail, Fault::kFailAfter, Fault::kKill}, AfterDump);
}

TEST(DumpTest, EveryFaultOfAHipProgramCostsTheImageAndNeverTheProgram) {
  ForEachFault(
      TwoProcessesOfHip, [](World& world) { return RunDump(world); },
      {Fault::kFail, Fault::kFailAfter, Fault::kKill}, AfterDump);
}

TEST(DumpTest, EveryFaultWithLeaveRunningLeavesItRunning) {
  ForEachFault(
      TwoProcesses, [](World& world) { return RunDump(world, /*leave_running=*/true); },
      {Fault::kFail, Fault::kHang},
      [](World& world, const FaultCase&, const Result<OperationResult>& done) -> std::string {
        if (!done && done.error().not_undone) {
          world.log.Unhang();
          auto [ok, outcomes] = Recover(world);
          if (!ok) return "recover: " + outcomes;
        }
        return world.WhyNotAsBefore();
      });
}

// If movers hash blocks, memory is copied before the pause begins.
std::unique_ptr<World> OneProcessOnTwoGpus() {
  auto world = std::make_unique<DumpWorld>(1);
  world->program.AddAgent(1, 1, {fakes::GpuA(), fakes::GpuB()});
  world->movers->hash_blocks = true;
  return world;
}

TEST(DumpTest, MemoryThatIsFreedWhileItIsCopiedAheadIsNotInTheImage) {
  for (size_t kept : {0, 1, 2}) {
    auto world = OneProcessOnTwoGpus();
    world->program.At(1).agent->keeps_when_copied = kept;
    auto done = RunDump(*world, /*leave_running=*/true);
    ASSERT_TRUE(done) << kept << done.error().ToString() << done.error().hint;
    EXPECT_EQ(world->log.Count("agent 1 ExportRunning"), 1);
    EXPECT_EQ(world->WhyNotAsBefore(), "");
    EXPECT_TRUE(done->notes.empty()) << done->notes.front();
    EXPECT_EQ(done->saved.copied, 0u) << "all of it was copied ahead";
    auto reader = store::ImageReader::Open(static_cast<DumpWorld&>(*world).image());
    ASSERT_TRUE(reader) << reader.error().ToString();
    EXPECT_EQ((*reader)->manifest().ranges.size(), kept);
    // The survey read the driver's and the agent's figures at different times; the dump must
    // correct them.
    EXPECT_EQ((*reader)->manifest().processes[0].device_bytes, world->program.At(1).device_bytes);
  }
}

TEST(DumpTest, EveryFaultOfTheCopyAheadLeavesItRunning) {
  ForEachFault(
      OneProcessOnTwoGpus, [](World& world) { return RunDump(world, /*leave_running=*/true); },
      {Fault::kFail, Fault::kHang},
      [](World& world, const FaultCase& fault, const Result<OperationResult>& done) -> std::string {
        // A failed copy ahead must not fail the dump. A hung agent may, because the suspend needs
        // it too.
        if (!done && fault.call == "agent 1 ExportRunning" && fault.fault == Fault::kFail) {
          return "it failed for the copy ahead";
        }
        if (!done && done.error().not_undone) {
          world.log.Unhang();
          auto [ok, outcomes] = Recover(world);
          if (!ok) return "recover: " + outcomes;
        }
        return world.WhyNotAsBefore();
      });
}

// The commit is refused after CRIU has written everything.
TEST(DumpTest, ARefusedCommitLetsTheProgramRun) {
  auto world = TwoProcesses();
  auto& dumped = static_cast<DumpWorld&>(*world);
  world->services.settings.most_image_bytes = 1;
  auto done = RunDump(*world);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kResourceExhausted) << done.error().ToString();
  EXPECT_FALSE(done.error().not_undone);
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_FALSE(dumped.HasImage());
  EXPECT_TRUE(dumped.Leftovers().empty());
}

TEST(DumpTest, AGpuWithoutADeviceInTheContainerIsNotRecorded) {
  auto world = TwoProcesses();
  auto& gpus = world->device->gpus;
  gpus.push_back(gpus.front());
  gpus.back().uuid.value = "GPU-cccccccc-0000-0000-0000-000000000000";
  gpus.back().minor = 999;
  ASSERT_TRUE(RunDump(*world));
  auto reader = store::ImageReader::Open(static_cast<DumpWorld&>(*world).image());
  ASSERT_TRUE(reader) << reader.error().ToString();
  EXPECT_EQ((*reader)->manifest().gpus.size(), 2u);
}

TEST(DumpTest, AnExistingNameIsRefused) {
  auto world = TwoProcesses();
  ASSERT_TRUE(MakeDirs(static_cast<DumpWorld&>(*world).image()));
  auto done = RunDump(*world);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kAlreadyExists);
  EXPECT_EQ(world->log.Count("agent 1 Close"), 0);
}

// CRIU failed after the commit and had killed nothing: the program runs on, and its image stays.
TEST(DumpTest, ACriuThatFailsAfterTheCommitLeavesImageAndProgram) {
  auto world = TwoProcesses();
  auto& dumped = static_cast<DumpWorld&>(*world);
  world->log.Set("criu End", Fault::kFail);
  auto done = RunDump(*world);
  ASSERT_FALSE(done);
  EXPECT_TRUE(done.error().not_undone);
  EXPECT_NE(done.error().hint.find("The program was not ended"), std::string::npos)
      << done.error().hint;
  EXPECT_TRUE(dumped.HasImage());
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

char StateOf(const process::ProcessId& id) {
  const auto stat = process::ReadStat(id.pid);
  return stat ? stat->state : '?';
}

// Waits until the process is stopped, by a signal or for its tracer, or is not.
bool AwaitStopped(const process::ProcessId& id, bool stopped) {
  const Deadline deadline = Deadline::In(std::chrono::seconds(5));
  const auto is_stopped = [&] { return StateOf(id) == 'T' || StateOf(id) == 't'; };
  while (is_stopped() != stopped && !deadline.passed()) ::usleep(1000);
  return is_stopped() == stopped;
}

// Continues the program before it traces it, in place of CRIU.
class ContinuingHandOver final : public HandOver {
 public:
  explicit ContinuingHandOver(World& world) : world_(world) {}
  Status Prepare(const std::string&, plan::PhaseScope&) override {
    for (const auto& process : world_.program.processes()) {
      const pid_t pid = process->id.pid.value;
      EXPECT_EQ(::kill(pid, SIGCONT), 0);
      EXPECT_TRUE(AwaitStopped(process->id, false));
      EXPECT_EQ(::ptrace(PTRACE_SEIZE, pid, 0, 0), 0) << strerror(errno);
    }
    return {};
  }
  Result<Switched> Switch(plan::PhaseScope&) override {
    all_stopped = true;
    for (const auto& process : world_.program.processes()) {
      all_stopped = all_stopped && AwaitStopped(process->id, true);
    }
    return Switched::kRunsThere;
  }
  std::string Place() const override { return "host/job"; }

  bool all_stopped = false;

 private:
  World& world_;
};

// Otherwise it would run on both hosts if this process was killed after the switch.
TEST(DumpTest, AMovedProgramIsStoppedAlsoIfItWasStoppedBefore) {
  auto world = TwoProcesses();
  for (const auto& process : world->program.processes()) {
    ASSERT_EQ(::kill(process->id.pid.value, SIGSTOP), 0);
    ASSERT_TRUE(AwaitStopped(process->id, true));
  }
  ContinuingHandOver hand_over(*world);
  Session session = fakes::MakeSession(*world, "dump");
  DumpOptions dump;
  dump.store = world->services.paths.images();
  dump.name = "name";
  dump.is_checkpoint = false;
  dump.hand_over = &hand_over;
  auto done = Dump(session, fakes::TargetOf(*world), dump, {});
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_TRUE(hand_over.all_stopped);
  EXPECT_FALSE(world->program.Alive(1));
}

TEST(DumpTest, ThePauseIsFromTheFirstToTheLastPhaseThatBlocksTheProgram) {
  std::vector<plan::PhaseReport> phases(4);
  phases[0] = {.name = "image-begin", .start_s = 0, .seconds = 1};
  phases[1] = {.name = "gate-close", .start_s = 1, .seconds = 1};
  phases[2] = {.name = "gpu-return", .start_s = 4, .seconds = 2};
  phases[3] = {.name = "commit", .start_s = 6, .seconds = 9};
  EXPECT_DOUBLE_EQ(Pause(phases), 5);
  EXPECT_DOUBLE_EQ(Pause({phases[0]}), 0);
}

}  // namespace
}  // namespace stasis::operations
