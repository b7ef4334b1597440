#include "operations/held_dump.h"

#include "operations/testing/held.h"
#include "store/image_reference.h"

namespace stasis::operations {
namespace {

using fakes::DataOf;
using fakes::Dumper;
using fakes::DumpScript;
using fakes::Fault;
using fakes::FaultCase;
using fakes::ForEachFault;
using fakes::HasData;
using fakes::HeldWorld;
using fakes::ImagesOf;
using fakes::kByReference;
using fakes::RunHold;
using fakes::World;

std::unique_ptr<World> TwoHeld() { return HeldWorld(2); }

TEST(HeldDumpTest, TheDataIsCompleteBeforeCriuEndsTheProgram) {
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

TEST(HeldDumpTest, AProgramThatIsLeftRunningHasItsMemoryBeforeCriuLetsItGo) {
  auto world = TwoHeld();
  auto done = RunHold(*world, Dumper(*world, {.leave_running = true}));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_TRUE(HasData(*world));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_LT(world->log.IndexOf("plugin LetRun"), world->log.IndexOf("agent 1 Open"));
  EXPECT_LT(world->log.IndexOf("agent 1 Open"), world->log.IndexOf("plugin Accept End"));
}

TEST(HeldDumpTest, CriuExitsWhenTheDataOfARunningProgramIsComplete) {
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

TEST(HeldDumpTest, CriuFailsIfTheDataOfARunningProgramCannotBeSaved) {
  auto world = TwoHeld();
  world->services.settings.most_image_bytes = 4097;  // inventory.img has a block
  auto done = RunHold(*world, Dumper(*world, {.leave_running = true, .early = true}));
  ASSERT_FALSE(done);
  EXPECT_EQ(world->log.Count("plugin Accept End"), 1);
  EXPECT_EQ(world->log.Count("plugin Refuse Complete"), 1);
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_FALSE(HasData(*world));
}

TEST(HeldDumpTest, ADumpRefusedAfterTheCommitLetsTheProgramRun) {
  auto world = TwoHeld();
  auto done = RunHold(*world, Dumper(*world, {.refused_after_commit = true}));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST(HeldDumpTest, ARefusedCommitLetsTheProgramRun) {
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

TEST(HeldDumpTest, AGpuFileThatIsOpenedLaterEndsTheDump) {
  auto world = TwoHeld();
  auto plugin = Dumper(*world, {.opens_gpu_file = true});
  auto done = RunHold(*world, plugin);
  ASSERT_FALSE(done);
  EXPECT_EQ(world->log.Count("plugin Commit"), 0);
  EXPECT_LT(world->log.IndexOf("plugin LetRun"), world->log.IndexOf("agent 1 Open"));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_FALSE(HasData(*world));
}

TEST(HeldDumpTest, ASuspendedProgramStaysSuspended) {
  auto world = TwoHeld();
  ASSERT_TRUE(fakes::Suspend(*world));
  auto done = RunHold(*world, Dumper(*world, {.leave_running = true}));
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(fakes::WhyNotSuspended(*world), "");
  ASSERT_TRUE(fakes::Resume(*world));
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST(HeldDumpTest, AReferenceNamesTheImageInTheStore) {
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

TEST(HeldDumpTest, AFailedDumpLeavesNoImageInTheStore) {
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

TEST(HeldDumpTest, AProgramWithoutAGpuIsLeftAlone) {
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

TEST(HeldDumpTest, EveryFaultOfADumpCostsTheImageAndNeverTheProgram) {
  for (const DumpScript& script : {DumpScript{}, DumpScript{.leave_running = true},
                                   DumpScript{.leave_running = true, .early = true}}) {
    ForEachFault(
        TwoHeld, [&](World& world) { return RunHold(world, Dumper(world, script)); },
        {Fault::kFail, Fault::kFailAfter, Fault::kKill}, AfterHold);
  }
}

}  // namespace
}  // namespace stasis::operations
