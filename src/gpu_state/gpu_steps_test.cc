#include "gpu_state/gpu_steps.h"

#include <gtest/gtest.h>

#include "gpu_state/testing/world.h"

namespace stasis::gpu_state {
namespace {

using device::ProcessState;
using fakes::Fault;
using fakes::World;

constexpr ProcessState kStates[] = {ProcessState::kRunning, ProcessState::kLocked,
                                    ProcessState::kCheckpointed};

TEST(ReturnToRecordedStateTest, EveryStateLeadsToEveryOther) {
  for (ProcessState recorded : kStates) {
    for (ProcessState now : kStates) {
      World world(1);
      auto record = world.Record();
      record[0].initial = recorded;
      world.program.At(1).state = now;
      Status back = ReturnAllToRecordedState(world.services, record);
      EXPECT_TRUE(back) << back.error().ToString();
      EXPECT_EQ(world.program.At(1).state, recorded)
          << device::StateName(now) << " to " << device::StateName(recorded);
    }
  }
}

TEST(ReturnToRecordedStateTest, AFailedStateIsDataLoss) {
  World world(1);
  auto record = world.Record();
  world.program.At(1).state = ProcessState::kFailed;
  Status back = ReturnToRecordedState(world.services, record[0]);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, Code::kDataLoss);
}

// A driver call that was abandoned at its deadline may still finish between two steps.
TEST(ReturnToRecordedStateTest, AStepThatComesTooLateIsRepeated) {
  World world(1);
  auto record = world.Record();
  world.program.At(1).state = ProcessState::kLocked;
  Error elsewhere{Code::kFailedPrecondition};
  world.log.SetError("device Unlock 1", elsewhere, 1);
  world.log.SetError("device Unlock 1", elsewhere, 2);
  EXPECT_TRUE(ReturnToRecordedState(world.services, record[0]));
  EXPECT_EQ(world.log.Count("device Unlock 1"), 3);
  EXPECT_EQ(world.program.At(1).state, ProcessState::kRunning);
}

TEST(ReturnToRecordedStateTest, AStateThatNeverSettlesEndsAtTheDeadline) {
  World world(1);
  auto record = world.Record();
  world.services.settings.undo_timeout_s = 0.05;
  world.program.At(1).state = ProcessState::kLocked;
  for (int i = 1; i < 100; ++i) {
    world.log.SetError("device Unlock 1", Error{Code::kFailedPrecondition}, i);
  }
  Status back = ReturnToRecordedState(world.services, record[0]);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, Code::kDeadlineExceeded);
}

TEST(ReturnToRecordedStateTest, AnEndedProcessNeedsNothing) {
  World world(2);
  auto record = world.Record();
  world.program.At(1).state = ProcessState::kCheckpointed;
  world.program.At(2).state = ProcessState::kCheckpointed;
  world.program.Kill(2);
  EXPECT_TRUE(ReturnAllToRecordedState(world.services, record));
  EXPECT_EQ(world.program.At(1).state, ProcessState::kRunning);
  EXPECT_EQ(world.log.Count("device Restore 2"), 0);
}

// The driver's checkpoint of imported memory succeeds, but its restore fails.
TEST(ReturnToRecordedStateTest, ReturnedMemoryIsNotSuspendedByTheDriver) {
  World world(1);
  world.program.AddAgent(1, 1).imported = true;
  auto record = world.Record();
  record[0].initial = ProcessState::kCheckpointed;
  Status back = ReturnAllToRecordedState(world.services, record);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().message, PartlyResumed().message);
  EXPECT_EQ(world.program.At(1).state, ProcessState::kRunning);
  EXPECT_EQ(world.log.Count("device Lock 1"), 0);
}

TEST(ReturnToRecordedStateTest, WithoutRoomItStaysSuspendedAndALaterCallSucceeds) {
  World world(2);
  auto record = world.Record();
  for (auto& process : world.program.processes()) process->state = ProcessState::kCheckpointed;
  for (auto& gpu : world.device->gpus) gpu.free_bytes = 100u << 20;  // enough for one process
  Status back = ReturnAllToRecordedState(world.services, record);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, Code::kResourceExhausted);
  EXPECT_NE(back.error().message.find("it stays suspended"), std::string::npos);
  EXPECT_EQ(world.program.At(1).state, ProcessState::kCheckpointed);
  EXPECT_EQ(world.program.At(2).state, ProcessState::kCheckpointed);
  for (auto& gpu : world.device->gpus) gpu.free_bytes = 80ull << 30;
  EXPECT_TRUE(ReturnAllToRecordedState(world.services, record));
  EXPECT_EQ(world.program.At(2).state, ProcessState::kRunning);
}

TEST(GpuStepsTest, PhasesSkipProcessesInOtherStates) {
  World world(3);
  world.program.At(2).state = ProcessState::kLocked;
  world.program.At(3).state = ProcessState::kCheckpointed;
  auto record = world.Record();
  plan::Plan plan("test");
  plan.Add(GpuLock(world.services, record));
  plan.Add(GpuCheckpoint(world.services, record, 0));
  plan.Add(GpuReleaseCheck(world.services, record));
  auto done = plan.Run({});
  ASSERT_TRUE(done) << done.error().ToString();
  EXPECT_EQ(world.log.Count("device Lock 2") + world.log.Count("device Lock 3"), 0);
  EXPECT_EQ(world.log.Count("device Checkpoint 3"), 0);
}

TEST(GpuStepsTest, AFailureReturnsEachProcessToItsOwnState) {
  World world(3);
  world.program.At(2).state = ProcessState::kLocked;
  world.program.At(3).state = ProcessState::kCheckpointed;
  auto record = world.Record();
  world.log.Set("device Checkpoint 1", Fault::kFail);
  plan::Plan plan("test");
  plan.Add(GpuLock(world.services, record));
  plan.Add(GpuCheckpoint(world.services, record, 0));
  auto done = plan.Run({});
  ASSERT_FALSE(done);
  EXPECT_FALSE(done.error().not_undone) << done.error().ToString();
  EXPECT_EQ(world.program.At(1).state, ProcessState::kRunning);
  EXPECT_EQ(world.program.At(2).state, ProcessState::kLocked);
  EXPECT_EQ(world.program.At(3).state, ProcessState::kCheckpointed);
}

TEST(GpuStepsTest, AProcessThatEndsIsNamed) {
  World world(2);
  auto record = world.Record();
  world.program.Kill(2);
  plan::Plan plan("test");
  plan.Add(GpuLock(world.services, record));
  auto done = plan.Run({});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kNotFound);
  EXPECT_EQ(world.program.At(1).state, ProcessState::kRunning);
}

TEST(GpuStepsTest, TheReleaseCheckTrustsNeitherStateNorFiles) {
  for (bool files : {false, true}) {
    World world(1);
    auto record = world.Record();
    if (files) {
      world.program.At(1).state = ProcessState::kCheckpointed;
      world.program.At(1).files_held = {"fd 7 -> /dev/nvidiactl"};
    }
    plan::Plan plan("test");
    plan.Add(GpuReleaseCheck(world.services, record));
    auto done = plan.Run({});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, files ? Code::kUnimplemented : Code::kInternal);
  }
}

TEST(GpuStepsTest, TheRestoreMapsFromTheGpusOfTheCheckpoint) {
  World world(1);
  const device::GpuMap exchanged = {{fakes::GpuA(), fakes::GpuB()}, {fakes::GpuB(), fakes::GpuA()}};
  auto record = world.Record();
  world.program.At(1).state = ProcessState::kCheckpointed;
  record[0].initial = ProcessState::kCheckpointed;
  ASSERT_TRUE(SaveSuspended(world.services.paths, {record[0].id, record[0].gpus, 4096, 1}));
  ASSERT_TRUE(RecordMove(world.services.paths, record[0].id, exchanged));
  plan::Plan plan("test");
  plan.Add(GpuRestore(world.services, record, {}, 0));
  ASSERT_TRUE(plan.Run({}));
  EXPECT_EQ(world.device->last_map(),
            (device::GpuMap{{fakes::GpuB(), fakes::GpuA()}, {fakes::GpuA(), fakes::GpuB()}}));
}

}  // namespace
}  // namespace stasis::gpu_state
