#include "gpu_state/gpu_room.h"
#include "plan/journal.h"

#include <gtest/gtest.h>

namespace stasis::gpu_state {
namespace {

using plan::RecordedProcess;

constexpr uint64_t kMiB = 1 << 20;

device::Gpu MakeGpu(int index, uint64_t free_mib) {
  return {{"GPU-" + std::to_string(index)}, index, "model", 1000 * kMiB, free_mib * kMiB};
}

RecordedProcess MakeProcess(pid_t pid, std::vector<device::GpuUuid> gpus, uint64_t mib) {
  return {{{pid}, 17}, device::ProcessState::kRunning, std::move(gpus), mib * kMiB};
}

TEST(CheckRoomTest, TheErrorHasFreeAndNeededMemory) {
  Status refused = CheckRoom({MakeGpu(0, 100)}, {MakeProcess(4711, {{"GPU-0"}}, 101)}, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_EQ(refused.error().message, "GPU 0 has 100 MiB free, and process 4711 needs 101 MiB");
  EXPECT_TRUE(CheckRoom({MakeGpu(0, 101)}, {MakeProcess(4711, {{"GPU-0"}}, 101)}, {}));
}

TEST(CheckRoomTest, TwoThatFitOnlyOneByOneDoNotFit) {
  std::vector<RecordedProcess> both = {MakeProcess(1, {{"GPU-0"}}, 60),
                                       MakeProcess(2, {{"GPU-0"}}, 60)};
  EXPECT_FALSE(CheckRoom({MakeGpu(0, 100)}, both, {}));
  EXPECT_TRUE(CheckRoom({MakeGpu(0, 120)}, both, {}));
}

TEST(CheckRoomTest, TheMapGivesTheTargetGpu) {
  std::vector<device::Gpu> gpus = {MakeGpu(0, 10), MakeGpu(1, 100)};
  std::vector<RecordedProcess> one = {MakeProcess(1, {{"GPU-0"}}, 60)};
  EXPECT_FALSE(CheckRoom(gpus, one, {}));
  EXPECT_TRUE(CheckRoom(gpus, one, {{{"GPU-0"}, {"GPU-1"}}, {{"GPU-1"}, {"GPU-0"}}}));
}

TEST(CheckRoomTest, AProcessOnTwoGpusNeedsItsSumThere) {
  std::vector<device::Gpu> gpus = {MakeGpu(0, 50), MakeGpu(1, 50)};
  auto spread = MakeProcess(1, {{"GPU-0"}, {"GPU-1"}}, 90);
  EXPECT_TRUE(CheckRoom(gpus, {spread}, {}));
  EXPECT_FALSE(CheckRoom(gpus, {spread, MakeProcess(2, {{"GPU-1"}}, 20)}, {}));
}

TEST(CheckRoomTest, UnknownNeedsAreNotRejected) {
  EXPECT_TRUE(CheckRoom({MakeGpu(0, 1)}, {MakeProcess(1, {}, 0)}, {}));
}

}  // namespace
}  // namespace stasis::gpu_state
