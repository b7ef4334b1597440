#include "operations/held_restore.h"

#include "device/gpu_map.h"
#include "operations/testing/held.h"
#include "operations/testing/restored.h"
#include "process/end.h"

namespace stasis::operations {
namespace {

using fakes::Dumper;
using fakes::Fault;
using fakes::FaultCase;
using fakes::ForEachFault;
using fakes::HasData;
using fakes::HeldWorld;
using fakes::ImagesOf;
using fakes::InventoryOf;
using fakes::kByReference;
using fakes::Kind;
using fakes::RunHold;
using fakes::World;

class HeldRestoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may choose a pid";
  }
};

std::unique_ptr<World> HeldAndEnded(bool hash_blocks = false) {
  auto world = HeldWorld(1);
  world->movers->hash_blocks = hash_blocks;
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
  EXPECT_NE(done.error().message.find("are from different dumps"), std::string::npos);
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

// Checks that the program is running, or that none of its processes is left and a second attempt
// succeeds.
std::string AfterHeldRestore(World& world, const FaultCase&, const Result<OperationResult>& done) {
  const auto& process = world.program.At(1);
  if (done && world.log.Count("plugin Accept End") > 0) return world.WhyNotAsBefore();
  // If CRIU dies before it has reported the restored processes, its caller has to kill them.
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
  auto world = HeldAndEnded(/*hash_blocks=*/true);
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

TEST_F(HeldRestoreTest, MoversThatHashLoadWithoutAnArena) {
  auto world = HeldAndEnded(/*hash_blocks=*/true);
  world->log.Clear();
  auto done = RunHold(*world, Restorer(*world));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_EQ(world->log.Count("mover A LoadFrom"), 1);
  EXPECT_EQ(world->log.Count("mover A Load"), 0);
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
  ForEachFault([] { return HeldAndEnded(); },
               [](World& world) { return RunHold(world, Restorer(world)); },
               {Fault::kFail, Fault::kFailAfter, Fault::kHang, Fault::kKill}, AfterHeldRestore);
}

}  // namespace
}  // namespace stasis::operations
