// Resumes and restores of programs that are granted some GPUs only, with fake agents and drivers.
#include "operations/choose_gpus.h"

#include "operations/restore.h"
#include "operations/resume.h"
#include "operations/testing/stage.h"

namespace stasis::operations {
namespace {

using stasis::fakes::GpuA;
using stasis::fakes::GpuB;
using stasis::fakes::Resume;
using stasis::fakes::Suspend;
using stasis::fakes::WhyNotSuspended;
using stasis::fakes::World;

const device::GpuMap kExchanged = {{GpuA(), GpuB()}, {GpuB(), GpuA()}};

TEST(GrantedResumeTest, MovesToTheGrantedGpu) {
  for (const char* map : {"", "auto", "0=1"}) {
    World world(1);
    world.program.AddAgent(1, 2);
    ASSERT_TRUE(Suspend(world));
    auto back = Resume(world, {.gpu_map = map, .granted = "1"});
    ASSERT_TRUE(back) << back.error().ToString();
    EXPECT_EQ(world.WhyNotAsBefore(), "");
    EXPECT_EQ(world.device->last_map(), kExchanged) << map;
  }
}

TEST(GrantedResumeTest, StaysIfItsGpuIsGranted) {
  for (const char* granted : {"", "0", "1,0"}) {
    World world(1);
    world.program.AddAgent(1, 2);
    ASSERT_TRUE(Suspend(world));
    ASSERT_TRUE(Resume(world, {.gpu_map = "auto", .granted = granted}));
    EXPECT_TRUE(world.device->last_map().empty());
  }
}

TEST(GrantedResumeTest, AGpuThatWasNotGrantedIsRefused) {
  const struct {
    const char* map;
    const char* granted;
    std::vector<device::GpuUuid> visible;
  } rows[] = {
      {"0=1", "0", {}},
      {"0=0", "1", {}},
      {"auto", "7", {}},
      {"auto", "-1", {}},
      {"auto", "1", {GpuA(), GpuB()}},  // it uses one GPU, and may use the other at any time
  };
  for (const auto& row : rows) {
    World world(1);
    world.program.AddAgent(1, 2).visible = row.visible;
    ASSERT_TRUE(Suspend(world));
    world.log.Clear();
    EXPECT_FALSE(Resume(world, {.gpu_map = row.map, .granted = row.granted})) << row.granted;
    EXPECT_EQ(WhyNotSuspended(world), "");
    EXPECT_EQ(world.log.IndexOf("device Restore 1"), -1);
  }
}

TEST(ChooseGpusTest, GrantedGpusReplaceThoseThatTheProgramSaw) {
  World world(1);
  store::Manifest manifest;
  for (const auto& gpu : world.device->gpus) {
    manifest.gpus.push_back({gpu.uuid.value, gpu.name, gpu.total_bytes, 0});
  }
  store::Process process;
  process.recorded_state = store::GpuState::kRunning;
  process.gpu_uuids = {GpuA().value};
  manifest.processes.push_back(process);
  auto choose = [&](const char* map, const char* granted) {
    RestoreOptions restore;
    restore.gpu_map = map;
    restore.granted = granted;
    return ChooseGpus(world.services, manifest, restore);
  };
  EXPECT_EQ(*choose("auto", "1"), kExchanged);
  EXPECT_EQ(*choose("", "1"), kExchanged);
  EXPECT_TRUE(choose("auto", "0")->empty());
  EXPECT_TRUE(choose("auto", "")->empty());
  EXPECT_EQ(choose("0=1", "0").error().code, Code::kFailedPrecondition);
  manifest.processes[0].visible_gpu_uuids = {GpuB().value, GpuA().value};
  EXPECT_EQ(choose("auto", "1").error().code, Code::kFailedPrecondition);
  EXPECT_TRUE(choose("auto", "1,0")->empty());
}

}  // namespace
}  // namespace stasis::operations
