// Dumps and restores in which a fake plugin drives CRIU.
#include "operations/hold.h"

#include "device/gpu_map.h"
#include "operations/testing/fake_plugin.h"
#include "operations/testing/restored.h"
#include "operations/testing/stage.h"
#include "process/end.h"
#include "store/image_reference.h"
#include "store/limits.h"

namespace stasis::operations {
namespace {

using fakes::Fault;
using fakes::FaultCase;
using fakes::ForEachFault;
using fakes::World;
using Kind = criu::PluginRequest::Kind;

std::string ImagesOf(World& world) { return world.services.paths.data + "/criu"; }
std::string DataOf(World& world) { return ImagesOf(world) + "/stasis"; }
std::string InventoryOf(World& world) { return ImagesOf(world) + "/inventory.img"; }
bool HasData(World& world) { return PathExists(DataOf(world) + "/" + store::kManifestName); }

std::unique_ptr<World> HeldWorld(int processes) {
  auto world = std::make_unique<World>(processes);
  for (int number = 1; number <= processes; ++number) world->program.AddAgent(number, 2);
  EXPECT_TRUE(MakeDirs(ImagesOf(*world)));
  EXPECT_TRUE(ReplaceFile(InventoryOf(*world), "dump 1"));
  return world;
}
std::unique_ptr<World> TwoHeld() { return HeldWorld(2); }

void KillProgram(World& world) {
  std::vector<process::ProcessId> ids;
  {
    std::lock_guard lock(world.program.mutex);
    for (const auto& process : world.program.processes()) ids.push_back(process->id);
  }
  for (const auto& id : ids) fakes::Sleepers::Kill(id);
}

// The course of a dump.
struct Script {
  bool leave_running = false;
  bool refused_after_commit = false;  // by another action script
  bool opens_gpu_file = false;        // by a process, before CRIU stops it
  bool early = false;                 // with leave_running: CRIU's caller waits for its exit
};

std::shared_ptr<fakes::FakePlugin> Dumper(World& world, Script script = {}) {
  auto plugin = std::make_shared<fakes::FakePlugin>(world.log, ImagesOf(world));
  const process::HostPid root = world.program.root().pid;
  plugin->Add({"Begin", {Kind::kBeginDump, root}});
  plugin->Add(
      {"Pause", {Kind::kPause, root, script.leave_running, script.early}, {}, [p = plugin.get()] {
         p->Exit();
       }});
  plugin->Add([&world, script, root]() -> fakes::FakePlugin::Step {
    if (script.opens_gpu_file) world.program.At(1).files_held = {"fd 7 -> /dev/nvidia0"};
    return {"Check", {Kind::kCheck, root}};
  });
  plugin->Add({"Commit", {Kind::kCommit, root}});
  plugin->Add([&world, script, p = plugin.get()]() -> fakes::FakePlugin::Step {
    const bool stays = script.leave_running || !p->refusal().empty();
    return {"End",
            {Kind::kEnd, {}, stays},
            [&world, script, stays, p] {
              if (!stays && !script.refused_after_commit) KillProgram(world);
              if (!script.early) p->Exit();
            },
            [p] { p->Exit(); }};
  });
  if (script.early) {
    auto exit = [p = plugin.get()] { p->Exit(); };
    plugin->Add({"Complete", {Kind::kComplete}, exit, exit});
  }
  return plugin;
}

Result<OperationResult> RunHold(World& world, const std::shared_ptr<fakes::FakePlugin>& plugin,
                                const HoldOptions& options = {}) {
  STASIS_ASSIGN(auto hold, Hold::Open(plugin));
  Session session = fakes::MakeSession(world, hold->verb());
  auto done = hold->Run(session, options, {});
  hold->Answer(done ? Status() : Status(Fail(done.error())));
  return done;
}

TEST(HoldTest, TheDataIsCompleteBeforeCriuEndsTheProgram) {
  auto world = TwoHeld();
  auto done = RunHold(*world, Dumper(*world));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_TRUE(HasData(*world));
  EXPECT_FALSE(world->program.Alive(1));
  EXPECT_FALSE(world->program.Alive(2));
  EXPECT_FALSE(world->movers->hold_memory());
  EXPECT_LT(world->log.IndexOf("agent 2 Release"), world->log.IndexOf("plugin Accept Pause"));
  EXPECT_EQ(world->log.Count("plugin LetRun"), 0);
}

TEST(HoldTest, AProgramThatIsLeftRunningHasItsMemoryBeforeCriuLetsItGo) {
  auto world = TwoHeld();
  auto done = RunHold(*world, Dumper(*world, {.leave_running = true}));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_TRUE(HasData(*world));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_LT(world->log.IndexOf("plugin LetRun"), world->log.IndexOf("agent 1 Open"));
  EXPECT_LT(world->log.IndexOf("agent 1 Open"), world->log.IndexOf("plugin Accept End"));
}

TEST(HoldTest, CriuExitsWhenTheDataOfARunningProgramIsComplete) {
  for (bool by_reference : {false, true}) {
    auto world = TwoHeld();
    auto done = RunHold(*world, Dumper(*world, {.leave_running = true, .early = true}),
                        {.by_reference = by_reference, .subject = {}});
    ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
    EXPECT_EQ(HasData(*world), !by_reference);
    EXPECT_EQ(world->WhyNotAsBefore(), "");
    EXPECT_LT(world->log.IndexOf("agent 1 Open"), world->log.IndexOf("plugin Accept End"));
    EXPECT_EQ(world->log.Count("plugin Accept Complete"), 1);
  }
}

TEST(HoldTest, CriuFailsIfTheDataOfARunningProgramCannotBeSaved) {
  auto world = TwoHeld();
  world->services.settings.most_image_bytes = 4097;  // inventory.img has a block
  auto done = RunHold(*world, Dumper(*world, {.leave_running = true, .early = true}));
  ASSERT_FALSE(done);
  EXPECT_EQ(world->log.Count("plugin Accept End"), 1);
  EXPECT_EQ(world->log.Count("plugin Refuse Complete"), 1);
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_FALSE(HasData(*world));
}

TEST(HoldTest, ADumpRefusedAfterTheCommitLetsTheProgramRun) {
  auto world = TwoHeld();
  auto done = RunHold(*world, Dumper(*world, {.refused_after_commit = true}));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST(HoldTest, ARefusedCommitLetsTheProgramRun) {
  auto world = TwoHeld();
  world->services.settings.most_image_bytes = 4097;  // inventory.img has a block
  auto plugin = Dumper(*world);
  auto done = RunHold(*world, plugin);
  ASSERT_FALSE(done);
  EXPECT_EQ(world->log.Count("plugin Refuse Commit"), 1);
  EXPECT_LT(world->log.IndexOf("plugin LetRun"), world->log.IndexOf("agent 1 Open"));
  EXPECT_LT(world->log.IndexOf("agent 1 Open"), world->log.IndexOf("plugin Refuse End"));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_FALSE(HasData(*world));
}

TEST(HoldTest, AGpuFileThatIsOpenedLaterEndsTheDump) {
  auto world = TwoHeld();
  auto plugin = Dumper(*world, {.opens_gpu_file = true});
  auto done = RunHold(*world, plugin);
  ASSERT_FALSE(done);
  EXPECT_EQ(world->log.Count("plugin Commit"), 0);
  EXPECT_LT(world->log.IndexOf("plugin LetRun"), world->log.IndexOf("agent 1 Open"));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_FALSE(HasData(*world));
}

TEST(HoldTest, ASuspendedProgramStaysSuspended) {
  auto world = TwoHeld();
  ASSERT_TRUE(fakes::Suspend(*world));
  auto done = RunHold(*world, Dumper(*world, {.leave_running = true}));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(fakes::WhyNotSuspended(*world), "");
  ASSERT_TRUE(fakes::Resume(*world));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

const HoldOptions kByReference = {.by_reference = true, .subject = {}};

TEST(HoldTest, AReferenceNamesTheImageInTheStore) {
  auto world = TwoHeld();
  auto done = RunHold(*world, Dumper(*world), kByReference);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_FALSE(HasData(*world));
  const std::string images = world->services.paths.images();
  auto found = store::FollowReference(DataOf(*world), "/no/store");
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_TRUE(found->starts_with(images + "/pid")) << *found;
  EXPECT_EQ(*found, done->image);
}

TEST(HoldTest, AFailedDumpLeavesNoImageInTheStore) {
  for (bool refused : {false, true}) {
    auto world = TwoHeld();
    if (refused) world->services.settings.most_image_bytes = 1;
    auto done = RunHold(*world, Dumper(*world, {.refused_after_commit = true}), kByReference);
    ASSERT_EQ(bool{done}, !refused);
    EXPECT_EQ(world->WhyNotAsBefore(), "");
    EXPECT_FALSE(PathExists(DataOf(*world)));
    EXPECT_EQ(ListDir(world->services.paths.images()).value_or(std::vector<std::string>()).size(),
              0u);
  }
}

TEST(HoldTest, AProgramWithoutAGpuIsLeftAlone) {
  auto world = std::make_unique<World>(1);
  world->program.At(1).uses_gpu = false;
  ASSERT_TRUE(MakeDirs(ImagesOf(*world)));
  auto plugin = Dumper(*world);
  auto done = RunHold(*world, plugin);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(world->log.Count("plugin NoGpu Pause"), 1);
  EXPECT_FALSE(PathExists(DataOf(*world)));
}

// Checks that the data is complete and the program has ended, or that the program is unchanged.
std::string AfterHold(World& world, const FaultCase& fault, const Result<OperationResult>& done) {
  if (!done && done.error().not_undone) {
    world.log.Unhang();
    auto [ok, outcomes] = fakes::Recover(world);
    if (!ok) return "recover: " + outcomes;
  }
  if (done && !HasData(world)) return "no data";
  if (!world.program.Alive(1)) {
    return HasData(world) || fault.fault == Fault::kKill ? "" : "the program was lost";
  }
  return world.WhyNotAsBefore();
}

TEST(HoldTest, EveryFaultOfADumpCostsTheImageAndNeverTheProgram) {
  for (const Script& script :
       {Script{}, Script{.leave_running = true}, Script{.leave_running = true, .early = true}}) {
    ForEachFault(
        TwoHeld, [&](World& world) { return RunHold(world, Dumper(world, script)); },
        {Fault::kFail, Fault::kFailAfter, Fault::kKill}, AfterHold);
  }
}

class HeldRestoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may choose a pid";
  }
};

std::unique_ptr<World> HeldAndEnded() {
  auto world = HeldWorld(1);
  auto done = RunHold(*world, Dumper(*world));
  EXPECT_TRUE(done) << done.error().ToString();
  fakes::KillAndReap(world->program.root().pid.value);
  return world;
}

std::shared_ptr<fakes::FakePlugin> Restorer(World& world,
                                            criu::PluginRequest begin = {Kind::kBeginRestore}) {
  auto plugin = std::make_shared<fakes::FakePlugin>(world.log, ImagesOf(world));
  auto root = std::make_shared<process::HostPid>();
  auto take_down = [root, p = plugin.get()] {
    if (root->value != 0) fakes::KillAndReap(root->value);
    p->Fail();
  };
  plugin->Add({"Begin", std::move(begin), {}, [p = plugin.get()] { p->Exit(); }});
  plugin->Add([&world, root, take_down]() -> fakes::FakePlugin::Step {
    auto made = fakes::StartRestored(world);
    EXPECT_TRUE(made) << made.error().ToString();
    if (made) *root = *made;
    return {"Restored", {Kind::kRestored, *root}, {}, take_down};
  });
  plugin->Add([root, take_down, p = plugin.get()]() -> fakes::FakePlugin::Step {
    return {"Resume", {Kind::kResume, *root}, {}, take_down};
  });
  plugin->Add([p = plugin.get()]() -> fakes::FakePlugin::Step {
    const bool stays = p->refusal().empty();
    return {"End", {Kind::kEnd, {}, stays}, [p] { p->Exit(); }, [p] { p->Exit(); }};
  });
  return plugin;
}

TEST_F(HeldRestoreTest, TheProgramRunsWithItsMemory) {
  auto world = HeldAndEnded();
  world->log.Clear();
  auto done = RunHold(*world, Restorer(*world));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_TRUE(done->job.empty());
  EXPECT_LT(world->log.IndexOf("mover A Load"), world->log.IndexOf("plugin Accept Restored"));
  EXPECT_LT(world->log.IndexOf("plugin LetRun"), world->log.IndexOf("device Restore 1"));
  EXPECT_LT(world->log.IndexOf("agent 1 Open"), world->log.IndexOf("plugin Accept Resume"));
}

TEST_F(HeldRestoreTest, TheImageOfAReferenceIsNeeded) {
  auto world = HeldWorld(1);
  auto dumped = RunHold(*world, Dumper(*world), kByReference);
  ASSERT_TRUE(dumped) << dumped.error().ToString();
  fakes::KillAndReap(world->program.root().pid.value);
  const std::string kept = dumped->image + "-kept";
  ASSERT_EQ(::rename(dumped->image.c_str(), kept.c_str()), 0);
  world->log.Clear();
  auto missing = RunHold(*world, Restorer(*world));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound) << missing.error().ToString();
  EXPECT_EQ(world->log.Count("plugin Refuse Begin"), 1);
  ASSERT_EQ(::rename(kept.c_str(), dumped->image.c_str()), 0);
  auto done = RunHold(*world, Restorer(*world));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST_F(HeldRestoreTest, FilesOfAnotherDumpAreRefused) {
  auto world = HeldAndEnded();
  world->log.Clear();
  ASSERT_TRUE(ReplaceFile(InventoryOf(*world), "dump 2"));
  auto done = RunHold(*world, Restorer(*world));
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("are not of the same dump"), std::string::npos);
  EXPECT_EQ(world->log.Count("plugin Refuse Begin"), 1);
  ASSERT_TRUE(ReplaceFile(InventoryOf(*world), "dump 1"));
  auto again = RunHold(*world, Restorer(*world));
  EXPECT_TRUE(again) << again.error().ToString() << again.error().hint;
}

TEST_F(HeldRestoreTest, WithoutRoomOnTheGpuCriuDoesNotBegin) {
  auto world = HeldAndEnded();
  world->log.Clear();
  for (auto& gpu : world->device->gpus) gpu.free_bytes = 1;
  auto full = RunHold(*world, Restorer(*world));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kResourceExhausted) << full.error().ToString();
  EXPECT_EQ(world->log.Count("plugin Refuse Begin"), 1);
  EXPECT_EQ(world->log.Count("plugin Restored"), 0);
}

// Checks that the program runs, or that none of its processes is left and a second attempt
// succeeds.
std::string AfterHeldRestore(World& world, const FaultCase&, const Result<OperationResult>& done) {
  const auto& process = world.program.At(1);
  if (done && world.log.Count("plugin Accept End") > 0) return world.WhyNotAsBefore();
  // A CRIU that dies before it has named its processes leaves them to its caller.
  const int named =
      world.log.Count("plugin Accept Restored") + world.log.Count("plugin Refuse Restored");
  if (named == 0) fakes::Sleepers::Kill(process.id);
  if (!process::WaitForEnd(process.id, Deadline::In(std::chrono::seconds(5)))) {
    return "the restored process was not killed";
  }
  if (world.movers->hold_memory()) return "a mover holds memory";
  if (!HasData(world)) return "the data is gone";
  ::waitpid(process.id.pid.value, nullptr, 0);
  world.log.Unhang();
  auto again = RunHold(world, Restorer(world));
  return again ? world.WhyNotAsBefore() : "second restore: " + again.error().ToString();
}

// GPU A is /dev/nvidia3, and GPU C, which the program did not have, /dev/nvidia4.
std::unique_ptr<World> HeldAndEndedWithGpuC() {
  auto world = HeldAndEnded();
  auto& gpus = world->device->gpus;
  gpus.push_back(gpus.front());
  gpus.front().minor = 3;
  gpus.back().uuid.value = "GPU-cccccccc-0000-0000-0000-000000000000";
  gpus.back().index = 2;
  gpus.back().minor = 4;
  return world;
}

TEST_F(HeldRestoreTest, ReplacesAGpuThatTheContainerCannotUse) {
  auto world = HeldAndEndedWithGpuC();
  auto done =
      RunHold(*world, Restorer(*world, {.kind = Kind::kBeginRestore, .refused_minors = {3}}));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  ASSERT_EQ(world->device->last_map().size(), 2u);
  EXPECT_EQ(device::Mapped(world->device->last_map(), fakes::GpuA()),
            world->device->gpus.back().uuid);
  ASSERT_EQ(done->notes.size(), 1u);
}

TEST_F(HeldRestoreTest, RefusesDeviceRulesWithoutTheDriver) {
  auto world = HeldAndEnded();
  auto plugin = Restorer(*world, {.kind = Kind::kBeginRestore, .refuses_uvm = true});
  ASSERT_FALSE(RunHold(*world, plugin));
  EXPECT_EQ(world->log.Count("plugin Refuse Begin"), 1);
}

TEST_F(HeldRestoreTest, TheUserMayNameTheGpu) {
  auto world = HeldAndEndedWithGpuC();
  auto done = RunHold(*world, Restorer(*world, {.kind = Kind::kBeginRestore, .gpu_map = "0=2"}));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(device::Mapped(world->device->last_map(), fakes::GpuA()),
            world->device->gpus.back().uuid);
}

TEST_F(HeldRestoreTest, RefusesWithoutAGpuForEachOfTheProgram) {
  auto world = HeldAndEndedWithGpuC();
  auto plugin = Restorer(*world, {.kind = Kind::kBeginRestore, .refused_minors = {3, 4}});
  ASSERT_FALSE(RunHold(*world, plugin));
  EXPECT_EQ(world->log.Count("plugin Refuse Begin"), 1);
  EXPECT_NE(plugin->refusal().find(fakes::GpuA().value), std::string::npos) << plugin->refusal();
}

TEST_F(HeldRestoreTest, EveryFaultLeavesNothingAndTheImage) {
  ForEachFault(
      HeldAndEnded, [](World& world) { return RunHold(world, Restorer(world)); },
      {Fault::kFail, Fault::kFailAfter, Fault::kHang, Fault::kKill}, AfterHeldRestore);
}

}  // namespace
}  // namespace stasis::operations
