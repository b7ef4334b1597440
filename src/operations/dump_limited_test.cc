// Dumps of GPU data that may not take host memory, with a fake CRIU, into a real store.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "operations/dump.h"
#include "operations/testing/stage.h"
#include "store/image_reader.h"
#include "store/limits.h"

namespace stasis::operations {
namespace {

using fakes::Fault;
using fakes::FaultCase;
using fakes::ForEachFault;
using fakes::World;

// The folder of arenas, and so the world, is in memory.
struct DiskWorld : World {
  DiskWorld() : World(2) {
    program.AddAgent(1, 2, {fakes::GpuA(), fakes::GpuB()});
    char folder[] = "/var/tmp/stasis-dump-test-XXXXXX";
    disk = ::mkdtemp(folder);
  }
  ~DiskWorld() override { std::filesystem::remove_all(disk); }
  std::string image() const { return services.paths.images() + "/name"; }
  bool HasImage() const { return PathExists(image() + "/" + store::kManifestName); }
  bool DiskIsEmpty() const { return std::filesystem::is_empty(disk); }

  std::string disk;
};

std::unique_ptr<World> OnDisk() { return std::make_unique<DiskWorld>(); }

Result<OperationResult> RunLimitedDump(World& world, bool leave_running = false) {
  auto& on_disk = static_cast<DiskWorld&>(world);
  Session session = fakes::MakeSession(world, "dump");
  session.criu = std::make_shared<fakes::FakeCriu>(world.program, world.log);
  DumpOptions dump;
  dump.store = world.services.paths.images();
  dump.name = "name";
  dump.leave_running = leave_running;
  OperationOptions options;
  options.overflow_dir = on_disk.disk;
  options.arena_limit_bytes = 1;
  return Dump(session, fakes::TargetOf(world), dump, options);
}

TEST(LimitedDumpTest, TheDataIsInTheImageAndNoFileIsLeft) {
  for (const bool leave_running : {false, true}) {
    auto world = OnDisk();
    auto& on_disk = static_cast<DiskWorld&>(*world);
    auto done = RunLimitedDump(*world, leave_running);
    ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
    const bool noted = std::any_of(done->notes.begin(), done->notes.end(), [&](const auto& note) {
      return note.find("went through files in " + on_disk.disk) != note.npos &&
             note.find("--arena-limit") != note.npos;
    });
    EXPECT_TRUE(noted) << done->notes.size();
    EXPECT_TRUE(on_disk.DiskIsEmpty());
    auto reader = store::ImageReader::Open(on_disk.image());
    ASSERT_TRUE(reader) << reader.error().ToString();
    EXPECT_EQ((*reader)->manifest().ranges.size(), 4u);
    EXPECT_EQ(world->program.Alive(1), leave_running);
    if (leave_running) {
      EXPECT_EQ(world->WhyNotAsBefore(), "");
    }
  }
}

TEST(LimitedDumpTest, WithoutADiskTheDumpIsRefused) {
  auto world = OnDisk();
  auto& on_disk = static_cast<DiskWorld&>(*world);
  std::filesystem::remove(on_disk.disk);
  on_disk.disk = world->services.paths.images();
  auto done = RunLimitedDump(*world);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kResourceExhausted);
  EXPECT_NE(done.error().ToString().find("is in memory too"), std::string::npos)
      << done.error().ToString();
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_EQ(world->log.Count("agent 1 Close"), 0);
}

// Either an image exists and the program has ended, or the program is as it was before the dump.
std::string AfterLimitedDump(World& world, const FaultCase& fault,
                             const Result<OperationResult>& done) {
  auto& on_disk = static_cast<DiskWorld&>(world);
  if (!done && done.error().not_undone) {
    world.log.Unhang();
    auto [ok, outcomes] = fakes::Recover(world);
    if (!ok) return "recover: " + outcomes;
  }
  if (!on_disk.DiskIsEmpty()) return "GPU data is left on the disk";
  if (done && !on_disk.HasImage()) return "no image";
  if (world.program.Alive(1)) return world.WhyNotAsBefore();
  // Only a kill by the fault itself, before the commit, may cost the program.
  const bool killed = !done && fault.fault == Fault::kKill;
  return killed || on_disk.HasImage() ? "" : "the program was lost";
}

TEST(LimitedDumpTest, EveryFaultCostsTheImageAndNeverTheProgram) {
  ForEachFault(
      OnDisk, [](World& world) { return RunLimitedDump(world); },
      {Fault::kFail, Fault::kFailAfter, Fault::kKill}, AfterLimitedDump);
}

TEST(LimitedDumpTest, EveryFaultWithLeaveRunningLeavesItRunning) {
  ForEachFault(
      OnDisk, [](World& world) { return RunLimitedDump(world, /*leave_running=*/true); },
      {Fault::kFail, Fault::kFailAfter}, AfterLimitedDump);
}

}  // namespace
}  // namespace stasis::operations
