// Loads one GPU while its arena is being filled and while the driver restores, with phases of a
// real plan and a real mover.
#include <unistd.h>

#include <atomic>

#include "driver_agent.h"
#include "gpu_state/gpu_load.h"

namespace stasis::dataplane::testing {
namespace {

using gpu_state::GpuLoad;
using gpu_state::GpuShard;
using plan::Phase;
using plan::PhaseScope;
using plan::Plan;

constexpr uint64_t kDriver = 24 * kMib;

// The data of one program, in an arena that is then overwritten.
struct Data {
  std::unique_ptr<DriverAgent> agent;
  std::string bytes;
  GpuShard lot;
};

class GpuLoadTest : public DataplaneTest {
 protected:
  void SetUp() override {
    DataplaneTest::SetUp();
    ::setenv("STASIS_MOVER_CHUNK_MIB", "2", 1);
    mover_.emplace(OptionsFor(0));
  }
  void TearDown() override {
    ::unsetenv("STASIS_MOVER_CHUNK_MIB");
    DataplaneTest::TearDown();
  }

  void Suspend(ArenaStore& store, Data& data, int pid, const std::vector<uint64_t>& sizes) {
    data.agent = std::make_unique<DriverAgent>();
    data.agent->Create(sizes, static_cast<uint64_t>(pid));
    ArenaKey key = KeyOf(0);
    key.process.pid.value += pid;
    auto arena = store.Acquire(key, ::getuid(), data.agent->ranges());
    ASSERT_DONE(arena);
    auto fds = data.agent->Export();
    data.agent->Release();
    ASSERT_DONE(mover_->Attach(*arena, Soon()));
    ASSERT_DONE(mover_->Save(arena->record().ranges, Raw(fds), {}, Soon()));
    ASSERT_DONE(mover_->Release(Soon()));
    data.bytes.resize(arena->record().data_bytes);
    ASSERT_EQ(::pread(arena->fd(), data.bytes.data(), data.bytes.size(), 0),
              static_cast<ssize_t>(data.bytes.size()));
    ASSERT_EQ(
        ::pwrite(arena->fd(), std::string(data.bytes.size(), 'x').data(), data.bytes.size(), 0),
        static_cast<ssize_t>(data.bytes.size()));
    data.lot.key = key;
    data.lot.ranges = arena->record().ranges;
    data.lot.filled = std::make_shared<std::atomic<uint64_t>>(0);
    data.lot.arena = std::move(*arena);
  }

  // Makes the next `bytes` available.
  static void Fill(Data& data, uint64_t bytes) {
    const uint64_t at = *data.lot.filled;
    ASSERT_LE(at + bytes, data.bytes.size());
    ASSERT_EQ(::pwrite(data.lot.arena->fd(), data.bytes.data() + at, bytes, static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes));
    *data.lot.filled = at + bytes;
  }
  static void FillAll(Data& data) { Fill(data, data.bytes.size() - *data.lot.filled); }

  static Phase Named(const char* name, std::function<Status(PhaseScope&)> run) {
    return {.name = name, .run = std::move(run)};
  }
  Phase LoadPhase(GpuLoad& load) {
    return Named("load", [&](PhaseScope& scope) {
      return load.Load(&scope, Soon(), [&](uint64_t done) {
        loaded_ = done;
        scope.Changed();
      });
    });
  }

  std::optional<Mover> mover_;
  std::atomic<uint64_t> loaded_{0};
};

TEST_F(GpuLoadTest, LoadsDuringTheReadAndFreesTheBallastInBetween) {
  ArenaStore store = OpenStore();
  Data one, two;
  ASSERT_NO_FATAL_FAILURE(Suspend(store, one, 1, {8 * kMib, 12 * kMib}));
  ASSERT_NO_FATAL_FAILURE(Suspend(store, two, 2, {16 * kMib}));
  const uint64_t free = FreeGpuBytes(0);
  GpuLoad load(*mover_, {&one.lot, &two.lot}, uint64_t{1} << 30);
  ASSERT_DONE(load.MakeRoom(kDriver, Soon()));
  const uint64_t all = free - 36 * kMib - kDriver;
  EXPECT_EQ(FreeGpuBytesSoon(0, all), all);

  std::atomic<bool> go{false};
  Plan plan("test");
  plan.AddParallel({Named("read",
                          [&](PhaseScope& scope) -> Status {
                            Fill(one, 5 * kMib);
                            scope.Changed();
                            STASIS_TRY(scope.WaitUntil([&] { return go.load(); }));
                            FillAll(one);
                            scope.Changed();
                            FillAll(two);
                            scope.Changed();
                            return {};
                          }),
                    LoadPhase(load), Named("driver", [&](PhaseScope& scope) -> Status {
                      // A part has been loaded, the rest is not available yet, and the driver's
                      // ballast is held.
                      STASIS_TRY(scope.WaitUntil([&] { return loaded_ == 5 * kMib; }));
                      EXPECT_EQ(FreeGpuBytes(0), all);
                      STASIS_TRY(load.FreeBallast(&scope, Soon()));
                      EXPECT_EQ(FreeGpuBytesSoon(0, free - 20 * kMib), free - 20 * kMib);
                      go = true;
                      scope.Changed();
                      return {};
                    })});
  ASSERT_DONE(plan.Run({}));
  EXPECT_EQ(loaded_, 36 * kMib);
  EXPECT_EQ(FreeGpuBytesSoon(0, free - 36 * kMib), free - 36 * kMib);
  one.agent->TakeBack(one.lot.memory);
  one.agent->Verify();
  two.agent->TakeBack(two.lot.memory);
  two.agent->Verify();
}

TEST_F(GpuLoadTest, TheBallastOutlivesTheLoad) {
  ArenaStore store = OpenStore();
  Data one;
  ASSERT_NO_FATAL_FAILURE(Suspend(store, one, 1, {8 * kMib}));
  const uint64_t free = FreeGpuBytes(0);
  GpuLoad load(*mover_, {&one.lot}, uint64_t{1} << 30);
  ASSERT_DONE(load.MakeRoom(kDriver, Soon()));
  FillAll(one);
  Plan plan("test");
  plan.AddParallel({LoadPhase(load), Named("driver", [&](PhaseScope& scope) -> Status {
                      STASIS_TRY(scope.Await("load"));
                      EXPECT_EQ(FreeGpuBytes(0), free - 8 * kMib - kDriver);
                      return load.FreeBallast(&scope, Soon());
                    })});
  ASSERT_DONE(plan.Run({}));
  EXPECT_EQ(FreeGpuBytesSoon(0, free - 8 * kMib), free - 8 * kMib);
  one.agent->TakeBack(one.lot.memory);
  one.agent->Verify();
}

TEST_F(GpuLoadTest, AFailedReadEndsTheLoadAndLeavesNothing) {
  ArenaStore store = OpenStore();
  Data one;
  ASSERT_NO_FATAL_FAILURE(Suspend(store, one, 1, {8 * kMib}));
  const uint64_t free = FreeGpuBytes(0);
  GpuLoad load(*mover_, {&one.lot}, uint64_t{1} << 30);
  ASSERT_DONE(load.MakeRoom(kDriver, Soon()));
  Plan plan("test");
  plan.AddParallel({Named("read",
                          [&](PhaseScope& scope) -> Status {
                            Fill(one, 3 * kMib);
                            scope.Changed();
                            STASIS_TRY(scope.WaitUntil([&] { return loaded_ == 3 * kMib; }));
                            return Fail(Code::kDataLoss, "the image is damaged");
                          }),
                    LoadPhase(load)});
  auto run = plan.Run({});
  EXPECT_REFUSED(Code::kDataLoss, run);
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
  EXPECT_TRUE(one.lot.memory.empty());
}

}  // namespace
}  // namespace stasis::dataplane::testing
