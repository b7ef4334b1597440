// Loads GPU memory from a source, through a mover's ring of buffers.
#include <unistd.h>

#include <cstring>

#include "base/block_hash.h"
#include "driver_agent.h"

namespace stasis::dataplane::testing {
namespace {

constexpr BlockSecret kSecret{7};

// The bytes of a program's memory, as a source. Blocks of zeros are not read.
class FromMemory final : public LoadSource {
 public:
  FromMemory(std::string memory, const std::vector<Range>& ranges)
      : memory_(std::move(memory)), ranges_(ranges) {}

  size_t items() const override { return (memory_.size() + kItemBytes - 1) / kItemBytes; }
  Status Read(size_t item, char* buffer, std::vector<LoadPart>& parts) const override {
    if (item == broken) return Fail(Code::kDataLoss, "a broken item");
    const uint64_t at = item * kItemBytes;
    const auto bytes = std::string_view(memory_).substr(at, kItemBytes);
    const bool zero = IsAllZero(bytes);
    if (!zero) std::memcpy(buffer, bytes.data(), bytes.size());
    if (item == flipped) buffer[12345] ^= 1;
    parts.push_back({at, bytes.size(), 0, zero});
    return {};
  }
  Status Check(std::vector<Id128> hashes) const override {
    const BlockKey key(kSecret);
    size_t next = 0;
    uint64_t at = 0;
    for (const Range& range : ranges_) {
      for (uint64_t done = 0; done < range.size_bytes; done += kBlockBytes, ++next) {
        const uint64_t bytes = std::min<uint64_t>(kBlockBytes, range.size_bytes - done);
        const auto block = std::string_view(memory_).substr(at + done, bytes);
        const Id128 expected = IsAllZero(block) ? Id128{} : key.Hash(block);
        if (next >= hashes.size() || hashes[next] != expected) {
          return Fail(Code::kDataLoss, "block " + std::to_string(next));
        }
      }
      at += range.size_bytes;
    }
    return {};
  }

  size_t broken = ~size_t{0};
  size_t flipped = ~size_t{0};

 private:
  const std::string memory_;
  const std::vector<Range> ranges_;
};

class RingTest : public DataplaneTest {
 protected:
  void SetUp() override {
    DataplaneTest::SetUp();
    agent_.emplace();
    // More than the ring has.
    agent_->Create({2 * kMib, 30 * kMib, 96 * kMib, 4 * kMib}, 30);
    bytes_ = 132 * kMib;
    ranges_ = agent_->ranges();
    source_.emplace(agent_->Read(0, bytes_), ranges_);
    agent_->Release();
    free_ = FreeGpuBytes(0);
  }
  Status Load(
      Mover& mover, const MoverLink::GoOn& go_on = [](uint64_t) { return Status(); }) {
    STASIS_TRY(mover.PrepareHashes(kSecret, Soon()));
    STASIS_TRY(mover.AttachRing(bytes_, bytes_, Soon()));
    std::vector<Range> ranges = ranges_;
    for (Range& range : ranges) range.arena_offset = range.stored_bytes = 0;
    STASIS_TRY(mover.PrepareLoad(ranges, 8 * kMib, Soon()));
    STASIS_TRY(mover.LoadFrom(*source_, go_on, Soon()));
    STASIS_ASSIGN(fds_, mover.Export(Soon()));
    STASIS_TRY(mover.Release(Soon()));
    return mover.Detach(Soon());
  }
  // Starts everything but a load, and returns the free memory of the GPU.
  uint64_t Prepare(Mover& mover) {
    EXPECT_DONE(mover.PrepareHashes(kSecret, Soon()));
    EXPECT_DONE(mover.AttachRing(bytes_, bytes_, Soon()));
    return FreeGpuBytes(0);
  }
  void ExpectLoaded(Mover& mover) {
    ASSERT_DONE(Load(mover));
    agent_->TakeBack(fds_);
    agent_->Verify();
  }

  std::optional<DriverAgent> agent_;
  std::optional<FromMemory> source_;
  std::vector<Range> ranges_;
  std::vector<UniqueFd> fds_;
  uint64_t bytes_ = 0;
  uint64_t free_ = 0;  // without a mover
};

TEST_F(RingTest, TheMemoryIsThatOfTheSource) {
  Mover mover(OptionsFor(0));
  uint64_t loaded = 0;
  ASSERT_DONE(Load(mover, [&](uint64_t now) -> Status {
    EXPECT_GE(now, loaded);
    loaded = now;
    return mover.FreeBallast(Soon());
  }));
  EXPECT_EQ(loaded, bytes_);
  agent_->TakeBack(fds_);
  agent_->Verify();
}

TEST_F(RingTest, ZerosAreCleared) {
  DriverAgent agent;
  agent.Create({6 * kMib, 64 * kMib}, 31);
  agent.Clear(6 * kMib, 64 * kMib);
  ranges_ = agent.ranges();
  bytes_ = 70 * kMib;
  source_.emplace(agent.Read(0, bytes_), ranges_);
  agent.Release();
  Mover mover(OptionsFor(0));
  ASSERT_DONE(Load(mover));
  agent.TakeBack(fds_);
  agent.Verify({1});
}

TEST_F(RingTest, AWrongByteIsFoundOnTheGpu) {
  Mover mover(OptionsFor(0));
  const uint64_t free = Prepare(mover);
  source_->flipped = 33;
  const Status wrong = Load(mover);
  EXPECT_REFUSED(Code::kDataLoss, wrong);
  EXPECT_EQ(wrong.error().message, "block 33");
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free) << "the memory is released";
  source_->flipped = ~size_t{0};
  ExpectLoaded(mover);
}

TEST_F(RingTest, AnErrorOfTheSourceOrTheCallerReleasesTheMemory) {
  Mover mover(OptionsFor(0));
  const uint64_t free = Prepare(mover);
  source_->broken = 50;
  EXPECT_REFUSED(Code::kDataLoss, Load(mover));
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
  source_->broken = ~size_t{0};
  EXPECT_REFUSED(Code::kCancelled, Load(mover, [](uint64_t loaded) -> Status {
                   if (loaded < 10 * kMib) return {};
                   return Fail(Code::kCancelled, "enough");
                 }));
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
  ExpectLoaded(mover);
}

TEST_F(RingTest, KilledAtEachCall) {
  if (!OnSoftgpu()) GTEST_SKIP() << "only softgpu dies on demand";
  for (const char* call :
       {"cuMemCreate:2", "cuMemcpyHtoDAsync_v2:9", "cuEventRecord:4", "cuEventSynchronize:2",
        "cuStreamSynchronize:3", "cuLaunchKernel:1", "cuMemExportToShareableHandle:1"}) {
    SCOPED_TRACE(call);
    Mover mover(OptionsFor(0));
    ASSERT_DONE(mover.Start(Soon()));
    Fault(mover.pid(), std::string(call) + "=die");
    EXPECT_REFUSED(Code::kUnavailable, Load(mover));
    EXPECT_EQ(FreeGpuBytesSoon(0, free_), free_);
  }
  Mover mover(OptionsFor(0));
  ExpectLoaded(mover);
}

TEST_F(RingTest, AnArenaCanFollowTheRing) {
  Mover mover(OptionsFor(0));
  ExpectLoaded(mover);
  ArenaStore store = OpenStore();
  auto arena = store.Acquire(KeyOf(0), ::getuid(), ranges_);
  ASSERT_DONE(arena);
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  const Status no_ring = mover.LoadFrom(
      *source_, [](uint64_t) { return Status(); }, Soon());
  EXPECT_REFUSED(Code::kFailedPrecondition, no_ring);
}

}  // namespace
}  // namespace stasis::dataplane::testing
