// Restores with a fake CRIU and shim, from an image of a fake dump.
#include "operations/restore.h"

#include <chrono>
#include <thread>

#include "operations/testing/restored.h"
#include "operations/testing/stage.h"
#include "store/image_reader.h"

namespace stasis::operations {
namespace {

using fakes::Fault;
using fakes::FaultCase;
using fakes::ForEachFault;
using fakes::KillAndReap;
using fakes::World;

// Does the work of CRIU: starts a stopped tree, and kills it if a notification is rejected.
// `stops`: with the plugin for restores.
Result<process::HostPid> RestoreProcess(World& world, const criu::NotifyHandler& handler,
                                        bool stops) {
  STASIS_ASSIGN(const process::HostPid root, fakes::StartRestored(world));
  const pid_t pid = root.value;
  if (world.device->no_checkpoint) {  // CRIU's plugin has restored it
    world.program.At(1).state = device::ProcessState::kRunning;
    world.program.At(1).queues_stopped = false;
  }
  criu::Notification notification;
  notification.moment = criu::Moment::kPostRestore;
  notification.pid = {pid};
  notification.stops_again = stops;
  Status allowed = handler(notification);
  if (allowed && stops) {
    notification.moment = criu::Moment::kStopped;
    notification.let_run = [&](const std::vector<pid_t>& threads) {
      EXPECT_EQ(threads.size(), 1u);
      return world.log.Run("criu", "LetRun", []() -> Status { return {}; });
    };
    allowed = handler(notification);
  }
  if (!allowed) {
    KillAndReap(pid);
    return Fail(std::move(allowed).error());
  }
  return process::HostPid{pid};
}

std::string ImageOf(World& world) { return world.services.paths.images() + "/image"; }

// A world whose program has been dumped and has ended. With `hash_blocks`, its movers can check the
// memory of an image.
std::unique_ptr<World> DumpedBy(bool hash_blocks, bool hip = false) {
  auto world = std::make_unique<World>(1);
  if (hip) {
    world->device->no_checkpoint = true;
    world->device->driver = {.kind = "softgpu-hip", .version = "1"};
  }
  world->movers->hash_blocks = hash_blocks;
  world->program.AddAgent(1, 2);
  Session session = fakes::MakeSession(*world, "dump");
  DumpOptions dump;
  dump.store = world->services.paths.images();
  dump.name = "image";
  auto done = Dump(session, fakes::TargetOf(*world), dump, {});
  EXPECT_TRUE(done) << done.error().ToString();
  KillAndReap(world->program.root().pid.value);
  return world;
}

std::unique_ptr<World> Dumped() { return DumpedBy(/*hash_blocks=*/false); }
std::unique_ptr<World> DumpedOfHip() { return DumpedBy(/*hash_blocks=*/false, /*hip=*/true); }
std::unique_ptr<World> DumpedWithHashes() { return DumpedBy(/*hash_blocks=*/true); }

Result<OperationResult> RunRestore(World& world, RestoreOptions restore = {}, bool stops = false) {
  Session session = fakes::MakeSession(world, "restore");
  session.restore_hosts =
      std::make_shared<fakes::FakeHosts>(world.log, [&, stops](const criu::NotifyHandler& handler) {
        return RestoreProcess(world, handler, stops);
      });
  restore.image = ImageOf(world);
  restore.trust_image = true;  // CRIU's files are not real
  return Restore(session, restore, {});
}

Result<OperationResult> RunStopped(World& world) { return RunRestore(world, {}, /*stops=*/true); }

class RestoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may choose a pid";
  }
};

TEST_F(RestoreTest, TheProgramRunsWithItsMemory) {
  auto world = Dumped();
  world->log.Clear();
  auto done = RunRestore(*world);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_EQ(done->pid, world->program.root().pid.value);
  EXPECT_FALSE(done->job.empty());
  EXPECT_LT(world->log.IndexOf("mover A FreeBallast"), world->log.IndexOf("device Restore 1"));
  EXPECT_LT(world->log.IndexOf("device Unlock 1"), world->log.IndexOf("agent 1 Map"));
  EXPECT_LT(world->log.IndexOf("agent 1 Open"), world->log.IndexOf("host Commit"))
      << "everything that can fail comes before the commit";
  EXPECT_EQ(world->log.Count("host Abort"), 0);
}

// Checks that either the program is running and its shim has committed, or that none of its
// processes is left and a second attempt succeeds.
std::string AfterRestore(World& world, const FaultCase& fault,
                         const Result<OperationResult>& done) {
  const auto& process = world.program.At(1);
  if (done) return world.WhyNotAsBefore();
  if (fault.call == "host Commit") return "";  // the shim decides; see shim tests
  if (process::IsAlive(process.id)) return "the restored process was not killed";
  if (world.movers->hold_memory()) return "a mover holds memory";
  if (!PathExists(ImageOf(world))) return "the image is gone";
  ::waitpid(process.id.pid.value, nullptr, 0);
  world.log.Unhang();
  auto again = RunRestore(world);
  return again ? world.WhyNotAsBefore() : "second restore: " + again.error().ToString();
}

TEST_F(RestoreTest, EveryFaultLeavesNothingAndTheImage) {
  ForEachFault(
      Dumped, [](World& world) { return RunRestore(world); },
      {Fault::kFail, Fault::kFailAfter, Fault::kHang, Fault::kKill}, AfterRestore);
}

TEST_F(RestoreTest, AProgramOfHipIsRestoredWithoutItsDriver) {
  auto world = DumpedOfHip();
  world->log.Clear();
  auto done = RunRestore(*world);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_EQ(world->log.Count("device Restore 1"), 0);
  EXPECT_EQ(world->log.Count("device Unlock 1"), 0);
  EXPECT_LT(world->log.IndexOf("agent 1 Open"), world->log.IndexOf("host Commit"));
}

TEST_F(RestoreTest, EveryFaultOfAHipProgramLeavesNothingAndTheImage) {
  ForEachFault(
      DumpedOfHip, [](World& world) { return RunRestore(world); },
      {Fault::kFail, Fault::kFailAfter, Fault::kHang, Fault::kKill}, AfterRestore);
}

// Returns the note that says why arenas were used; empty if there is none.
std::string NoteOnArenas(const OperationResult& result) {
  for (const std::string& note : result.notes) {
    if (note.find("through arenas") != std::string::npos) return note;
  }
  return "";
}

TEST_F(RestoreTest, MoversThatHashLoadWithoutAnArena) {
  auto world = DumpedWithHashes();
  world->log.Clear();
  auto done = RunRestore(*world);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_EQ(world->log.Count("mover A LoadFrom"), 1);
  EXPECT_EQ(world->log.Count("mover A Load"), 0);
  EXPECT_LT(world->log.IndexOf("mover A LoadFrom"), world->log.IndexOf("device Restore 1"));
  EXPECT_EQ(NoteOnArenas(*done), "");
}

TEST_F(RestoreTest, TheReasonForArenasIsNoted) {
  auto world = Dumped();
  auto done = RunRestore(*world);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_NE(NoteOnArenas(*done).find("this fake mover hashes no blocks"), std::string::npos);
}

TEST_F(RestoreTest, ASettingChoosesArenas) {
  auto world = DumpedWithHashes();
  world->services.settings.restore_data = "arena";
  world->log.Clear();
  auto done = RunRestore(*world);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_EQ(world->log.Count("mover A Load"), 1);
  EXPECT_EQ(NoteOnArenas(*done), "");
}

TEST_F(RestoreTest, EveryFaultWithoutAnArenaLeavesNothingAndTheImage) {
  ForEachFault(
      DumpedWithHashes, [](World& world) { return RunRestore(world); },
      {Fault::kFail, Fault::kFailAfter, Fault::kHang, Fault::kKill}, AfterRestore);
}

TEST_F(RestoreTest, TheDriverRestoresWhileTheDataIsLoaded) {
  for (const bool hash_blocks : {false, true}) {
    SCOPED_TRACE(hash_blocks ? "from packs" : "through arenas");
    auto world = DumpedBy(hash_blocks);
    world->log.Clear();
    const Deadline limit = Deadline::In(std::chrono::seconds(10));
    world->movers->MoverOf(fakes::GpuA()).keeps_loading = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the mover copies a part
      return world->log.Count("device Restore 1") == 0 && !limit.passed();
    };
    auto done = RunStopped(*world);
    ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
    EXPECT_FALSE(limit.passed()) << "the driver waits for the data";
    EXPECT_EQ(world->WhyNotAsBefore(), "");
    EXPECT_LT(world->log.IndexOf("criu LetRun"), world->log.IndexOf("device Restore 1"));
    EXPECT_LT(world->log.IndexOf("mover A FreeBallast"), world->log.IndexOf("device Restore 1"));
    EXPECT_EQ(world->log.Count("device Restore 1"), 1);
    EXPECT_LT(world->log.IndexOf("device Unlock 1"), world->log.IndexOf("agent 1 Map"));
  }
}

TEST_F(RestoreTest, WithoutAThreadOfItsOwnTheDriverRestoresWhenTheProgramRuns) {
  auto world = DumpedWithHashes();
  world->device->no_restore_thread = true;
  world->log.Clear();
  auto done = RunStopped(*world);
  ASSERT_TRUE(done) << done.error().ToString() << done.error().hint;
  EXPECT_EQ(world->WhyNotAsBefore(), "");
  EXPECT_EQ(world->log.Count("criu LetRun"), 0);
  EXPECT_LT(world->log.IndexOf("mover A LoadFrom"), world->log.IndexOf("device Restore 1"));
}

TEST_F(RestoreTest, EveryFaultWhileTheProgramIsStoppedLeavesNothingAndTheImage) {
  for (auto* prepare : {Dumped, DumpedWithHashes}) {
    ForEachFault(prepare, RunStopped, {Fault::kFail, Fault::kFailAfter, Fault::kHang, Fault::kKill},
                 AfterRestore);
  }
}

TEST_F(RestoreTest, WithoutRoomOnTheGpuNothingIsStarted) {
  auto world = Dumped();
  world->log.Clear();
  for (auto& gpu : world->device->gpus) gpu.free_bytes = 1;
  auto full = RunRestore(*world);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::kResourceExhausted) << full.error().ToString();
  EXPECT_EQ(world->log.Count("host Start"), 0);
}

void ExpectDamageIsFound(std::unique_ptr<World> world, bool stops = false) {
  world->log.Clear();
  {
    auto reader = store::ImageReader::Open(ImageOf(*world));
    ASSERT_TRUE(reader);
    for (const auto& pack : (*reader)->manifest().packs) {
      const std::string path = ImageOf(*world) + "/" + pack.path();
      UniqueFd fd(::open(path.c_str(), O_WRONLY));
      // The first bytes of a block's content.
      ASSERT_EQ(::pwrite(fd.get(), "damage", 6, 4096), 6) << path;
    }
  }
  auto damaged = RunRestore(*world, {}, stops);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Code::kDataLoss) << damaged.error().ToString();
  EXPECT_TRUE(stops || world->log.Count("device Restore 1") == 0);
  EXPECT_EQ(world->log.Count("device Unlock 1"), 0);
  EXPECT_EQ(world->log.Count("host Commit"), 0);
  EXPECT_FALSE(process::IsAlive(world->program.At(1).id));
}

TEST_F(RestoreTest, ADamagedBlockIsFoundBeforeTheProgramRuns) { ExpectDamageIsFound(Dumped()); }

TEST_F(RestoreTest, AnUncheckedBlockIsFoundByItsHash) { ExpectDamageIsFound(DumpedWithHashes()); }

TEST_F(RestoreTest, DamageIsFoundWhileTheProgramIsStopped) {
  ExpectDamageIsFound(Dumped(), /*stops=*/true);
  ExpectDamageIsFound(DumpedWithHashes(), /*stops=*/true);
}

// A program without GPU memory runs as soon as CRIU has restored it.
TEST_F(RestoreTest, AProgramMayFinishBeforeItIsAdopted) {
  World world(1);
  world.program.At(1).uses_gpu = false;
  const pid_t pid = world.program.root().pid.value;
  Session session = fakes::MakeSession(world, "dump");
  DumpOptions dump;
  dump.store = world.services.paths.images();
  dump.name = "image";
  auto dumped = Dump(session, fakes::TargetOf(world), dump, {});
  ASSERT_TRUE(dumped) << dumped.error().ToString();
  KillAndReap(pid);
  session = fakes::MakeSession(world, "restore");
  session.restore_hosts = std::make_shared<fakes::FakeHosts>(
      world.log, [&](const criu::NotifyHandler& handler) -> Result<process::HostPid> {
        EXPECT_EQ(fakes::StartWithPid(pid), pid);
        criu::Notification notification;
        notification.moment = criu::Moment::kPostRestore;
        notification.pid = {pid};
        EXPECT_TRUE(handler(notification));
        KillAndReap(pid);
        return process::HostPid{pid};
      });
  RestoreOptions restore;
  restore.image = ImageOf(world);
  restore.trust_image = true;
  auto done = Restore(session, restore, {});
  EXPECT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(world.log.Count("host Commit"), 1);
}

TEST_F(RestoreTest, ARunningProgramsPidsAreTaken) {
  auto world = Dumped();
  ASSERT_TRUE(RunRestore(*world));
  auto taken = RunRestore(*world);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::kAborted) << taken.error().ToString();
  EXPECT_EQ(world->WhyNotAsBefore(), "");
}

TEST_F(RestoreTest, ADryRunStartsNothing) {
  auto world = Dumped();
  world->log.Clear();
  Session session = fakes::MakeSession(*world, "restore");
  RestoreOptions restore;
  restore.image = ImageOf(*world);
  OperationOptions options;
  options.dry_run = true;
  auto done = Restore(session, restore, options);
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(done->planned_phases.back(), "adopt");
  EXPECT_EQ(world->log.Count("mover A Start"), 0);
}

}  // namespace
}  // namespace stasis::operations
