#include "operations/data_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stop_token>

#include "base/file.h"
#include "checkpoint/image_data.h"
#include "gpu_state/shared_resume.h"
#include "gpu_state/testing/fake_movers.h"
#include "process/control_group.h"

namespace stasis::operations {
namespace {

using gpu_state::GpuShard;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMib = 1 << 20;
constexpr std::optional<size_t> kNone;
constexpr char kGpu[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";

// Fills each range with one byte, except ranges that still have the bytes of the earlier image.
class FakeSource final : public store::RangeSource {
 public:
  Status Read(std::span<const size_t> ranges, std::span<const store::RangeOutput> outputs,
              const store::UnitJobs::Placed& placed, const std::function<bool()>&) const override {
    earlier_ranges.clear();
    for (size_t i = 0; i < ranges.size(); ++i) {
      earlier_ranges.push_back(outputs[i].earlier_range);
      const uint64_t bytes = manifest.ranges[ranges[i]].size_bytes;
      if (!outputs[i].earlier_range) std::memset(outputs[i].data, fill, bytes);
      STASIS_TRY(placed({static_cast<uint32_t>(i), 0}, bytes));
    }
    return fails ? Fail(Code::kDataLoss, "damaged") : Status();
  }

  store::Manifest manifest;
  char fill = 'a';
  bool fails = false;
  mutable std::vector<std::optional<size_t>> earlier_ranges;
};

class DataAheadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/dev/shm/stasis-data-ahead-test.XXXXXX";
    folder_ = ::mkdtemp(folder);
    paths_ = {folder_ + "/run", folder_ + "/data", "", folder_ + "/arena"};
    ASSERT_TRUE(MakeDirs(paths_.run));
    ASSERT_TRUE(MakeDirs(paths_.arena));
    ahead_.emplace(paths_, 0);
    source_.manifest.gpus = {{kGpu, "Fake GPU", 8ull << 30, 0}};
    AddRange(0x10000000, 3 * kMib);
    AddRange(0x20000000, kMib);
  }
  void TearDown() override {
    ahead_.reset();
    std::filesystem::remove_all(folder_);
  }
  void AddRange(uint64_t address, uint64_t bytes) {
    store::DeviceRange range;
    range.address = address;
    range.size_bytes = bytes;
    range.pid = 4711;
    source_.manifest.ranges.push_back(range);
  }
  Status Load(char fill) {
    source_.fill = fill;
    return ahead_->Load(source_.manifest, source_, [](uint64_t) { return true; });
  }
  std::vector<GpuShard> Shards() const {
    return *checkpoint::ShardsIn(source_.manifest, gpu_state::SharedResume::ExpectedProcess,
                                 source_.manifest.job.uid);
  }
  static char ByteAt(const GpuShard& shard, size_t range) {
    char byte = 0;
    EXPECT_TRUE(PreadAll(shard.arena->fd(), &byte, 1, shard.ranges[range].arena_offset));
    return byte;
  }
  std::vector<std::string> ArenaStates() {
    std::vector<std::string> states;
    auto store = dataplane::ArenaStore::Open(paths_);
    const auto arenas = store->List();
    for (const auto& arena : *arenas) states.emplace_back(dataplane::StateName(arena));
    return states;
  }

  std::string folder_;
  Paths paths_;
  std::optional<DataAhead> ahead_;
  FakeSource source_;
};

TEST_F(DataAheadTest, ARestoreGetsTheArenaWithItsBytes) {
  ASSERT_TRUE(Load('a'));
  EXPECT_THAT(source_.earlier_ranges, ElementsAre(kNone, kNone));
  EXPECT_EQ(ahead_->bytes(), 4 * kMib);
  auto shards = Shards();
  ahead_->MoveTo(shards);
  ASSERT_TRUE(shards[0].arena);
  EXPECT_EQ(shards[0].ahead.size(), 2u);
  EXPECT_EQ(ByteAt(shards[0], 1), 'a');
  EXPECT_EQ(ahead_->bytes(), 0u);
}

TEST_F(DataAheadTest, OnlyRangesInTheSamePlaceHaveEarlierBytes) {
  ASSERT_TRUE(Load('a'));
  AddRange(0x30000000, 2 * kMib);
  ASSERT_TRUE(Load('b'));
  EXPECT_THAT(source_.earlier_ranges, ElementsAre(0, 1, kNone));
  source_.manifest.ranges[1].address += kMib;
  ASSERT_TRUE(Load('c'));
  EXPECT_THAT(source_.earlier_ranges, ElementsAre(0, kNone, 2));
  auto shards = Shards();
  ahead_->MoveTo(shards);
  ASSERT_TRUE(shards[0].arena);
  EXPECT_EQ(ByteAt(shards[0], 0), 'a');
  EXPECT_EQ(ByteAt(shards[0], 1), 'c');
  EXPECT_EQ(ByteAt(shards[0], 2), 'b');
}

// A range of the earlier image is found by its offset in the arena, because several ranges may have
// the same address.
TEST_F(DataAheadTest, ARangeIsKnownByItsPlace) {
  source_.manifest.ranges.clear();
  for (int i = 0; i < 3; ++i) AddRange(0, kMib);
  ASSERT_TRUE(Load('a'));
  source_.manifest.ranges.erase(source_.manifest.ranges.begin());
  ASSERT_TRUE(Load('b'));
  EXPECT_THAT(source_.earlier_ranges, ElementsAre(0, 1));
}

// After a failed load an arena may contain data of two images, so it is freed.
TEST_F(DataAheadTest, AFailedLoadLeavesNothing) {
  ASSERT_TRUE(Load('a'));
  source_.fails = true;
  EXPECT_FALSE(Load('b'));
  EXPECT_EQ(ahead_->bytes(), 0u);
  source_.fails = false;
  ASSERT_TRUE(Load('c'));
  EXPECT_THAT(source_.earlier_ranges, ElementsAre(kNone, kNone));
}

TEST_F(DataAheadTest, ArenasThatNobodyNeedsAreFreed) {
  ASSERT_TRUE(Load('a'));
  source_.manifest.gpus[0].uuid.back() = '0';
  ASSERT_TRUE(Load('b'));
  EXPECT_THAT(source_.earlier_ranges, ElementsAre(kNone, kNone));
  EXPECT_THAT(ArenaStates(), ::testing::Contains("in use").Times(1));
  source_.manifest.ranges.clear();
  ASSERT_TRUE(Load('c'));
  EXPECT_EQ(ahead_->bytes(), 0u);
  EXPECT_THAT(ArenaStates(), ::testing::Each("free"));
}

TEST_F(DataAheadTest, TheMoverOfTheTargetGpuRegistersTheArena) {
  const device::GpuMap map = {{device::GpuUuid{kGpu}, fakes::GpuA()}};
  ASSERT_TRUE(Load('a'));
  fakes::CallLog log;
  gpu_state::Services services;
  services.movers = std::make_shared<fakes::FakeMovers>(log);
  ASSERT_TRUE(ahead_->Register(services, map, {}, Deadline()));
  const std::vector<std::string> calls = {"mover A Start", "mover A Attach", "mover A Warm",
                                          "mover A Detach"};
  EXPECT_EQ(log.calls(), calls);
  log.Clear();
  log.Set("mover A Warm", fakes::Fault::kFail);
  EXPECT_FALSE(ahead_->Register(services, map, {}, Deadline()));
  EXPECT_EQ(log.calls(), calls) << "the arena must not stay locked";
}

TEST_F(DataAheadTest, TheReasonWhyTheRestoreRegistersIsReturned) {
  const device::GpuMap map = {{device::GpuUuid{kGpu}, fakes::GpuA()}};
  ASSERT_TRUE(Load('a'));
  fakes::CallLog log;
  gpu_state::Services services;
  auto movers = std::make_shared<fakes::FakeMovers>(log);
  services.movers = movers;
  fakes::FakeMover& mover = movers->MoverOf(fakes::GpuA());
  EXPECT_THAT(*ahead_->Register(services, map, {}, Deadline()), IsEmpty());
  mover.registers = false;
  EXPECT_THAT(*ahead_->Register(services, map, {}, Deadline()),
              ElementsAre(HasSubstr("the driver does not register")));
  log.Clear();
  mover.ends_with_client = true;
  EXPECT_THAT(*ahead_->Register(services, map, {}, Deadline()), ElementsAre(HasSubstr("was busy")));
  EXPECT_THAT(log.calls(), ElementsAre("mover A Start")) << "its registration would be lost";
}

TEST_F(DataAheadTest, MemoryIsNeededForTheCpuAndTheGpu) {
  EXPECT_TRUE(ahead_->CheckMemory(source_.manifest));
  const uint64_t available =
      std::min(dataplane::MemoryAvailable(),
               process::MemoryLeftInControlGroups({::getpid()}).beyond_reserve());
  const uint64_t most = available / 4 * 3;
  source_.manifest.ranges[0].size_bytes = most;
  EXPECT_TRUE(ahead_->CheckMemory(source_.manifest));
  source_.manifest.files.push_back({"cpu/inventory.img", most, {}});
  const Status checked = ahead_->CheckMemory(source_.manifest);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, Code::kResourceExhausted);
  source_.manifest.ranges.clear();
  EXPECT_TRUE(ahead_->CheckMemory(source_.manifest));
}

TEST_F(DataAheadTest, ACancelledRegistrationLeavesTheArenaUnlocked) {
  ASSERT_TRUE(Load('a'));
  fakes::CallLog log;
  gpu_state::Services services;
  services.movers = std::make_shared<fakes::FakeMovers>(log);
  std::stop_source stop;
  stop.request_stop();
  const auto registered = ahead_->Register(services, {{device::GpuUuid{kGpu}, fakes::GpuA()}},
                                           stop.get_token(), Deadline());
  ASSERT_FALSE(registered);
  EXPECT_EQ(registered.error().code, Code::kCancelled);
  const std::vector<std::string> calls = {"mover A Start", "mover A Attach", "mover A Warm",
                                          "mover A Detach"};
  EXPECT_EQ(log.calls(), calls);
}

TEST_F(DataAheadTest, AProgramWithoutDataNeedsNoArena) {
  source_.manifest.ranges.clear();
  ASSERT_TRUE(Load('a'));
  EXPECT_THAT(*ListDir(paths_.arena), IsEmpty());
}

}  // namespace
}  // namespace stasis::operations
