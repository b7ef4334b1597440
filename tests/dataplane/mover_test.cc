// Copies memory of a program through a mover to an arena and back.
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "base/file.h"
#include "driver_agent.h"
#include "ipc/socket.h"

namespace stasis::dataplane::testing {
namespace {

using MoverTest = DataplaneTest;

// Suspends: afterwards only the arena has the data.
void SuspendInto(Mover& mover, ArenaStore& store, Arena& arena, DriverAgent& agent,
                 const CopyOptions& options = {}, CopyResult* result = nullptr) {
  auto fds = agent.Export();
  agent.Release();
  ASSERT_DONE(mover.Attach(arena, Soon()));
  auto saved = mover.Save(arena.record().ranges, Raw(fds), options, Soon());
  ASSERT_DONE(saved);
  ASSERT_DONE(store.Complete(arena, saved->checksum));
  ASSERT_DONE(mover.Release(Soon()));
  if (result != nullptr) *result = *saved;
}

// Resumes from the arena.
void ResumeFrom(Mover& mover, const Arena& arena, DriverAgent& agent, uint64_t ballast = 0,
                const CopyOptions& options = {}, CopyResult* result = nullptr) {
  ASSERT_DONE(mover.Attach(arena, Soon()));
  ASSERT_DONE(mover.PrepareLoad(arena.record().ranges, ballast, Soon()));
  ASSERT_DONE(mover.FreeBallast(Soon()));
  auto loaded = mover.Load(options, Soon());
  ASSERT_DONE(loaded);
  auto fds = mover.Export(Soon());
  ASSERT_DONE(fds);
  ASSERT_DONE(mover.Release(Soon()));
  agent.TakeBack(*fds);
  if (result != nullptr) *result = *loaded;
}

TEST_F(MoverTest, SavesAndLoadsColdAndWarm) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  const auto info = mover.Start(Soon());
  ASSERT_DONE(info);
  EXPECT_GT(info->free_bytes, 0u);
  DriverAgent agent;
  agent.Create({2 * kMib, 30 * kMib, 64 * kMib, 2 * kMib}, 1);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  const uint64_t before = FreeGpuBytes(0);
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    CopyResult saved, loaded;
    SuspendInto(mover, store, *arena, agent, {}, &saved);
    EXPECT_EQ(saved.copied_bytes, 98 * kMib);
    EXPECT_EQ(saved.cold_bytes, round == 0 ? arena->capacity_bytes() : 0) << "registered once";
    EXPECT_FALSE(saved.staged);
    EXPECT_EQ(FreeGpuBytesSoon(0, before + 98 * kMib), before + 98 * kMib)
        << "the GPU must be free";
    ResumeFrom(mover, *arena, agent, 0, {}, &loaded);
    EXPECT_EQ(loaded.cold_bytes, 0u);
    EXPECT_EQ(FreeGpuBytesSoon(0, before), before);
    agent.Verify();
  }
}

TEST_F(MoverTest, ManySmallHandles) {
  // 10,000 handles need 20 GiB of softgpu memory and as much arena: set STASIS_TEST_HANDLES=10000
  // STASIS_TEST_GPU_MEMORY=24G on a machine that has it.
  const char* text = std::getenv("STASIS_TEST_HANDLES");
  const size_t count = text == nullptr ? 450 : std::strtoul(text, nullptr, 10);
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create(std::vector<uint64_t>(count, 2 * kMib), 2);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  SuspendInto(mover, store, *arena, agent);
  ResumeFrom(mover, *arena, agent);
  agent.Verify();
}

TEST_F(MoverTest, ProgressIsReportedAndChecksumsAreCompared) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({64 * kMib}, 3);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  std::vector<uint64_t> seen;
  CopyOptions options;
  options.checksum = true;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 64 * kMib);
    seen.push_back(done);
  };
  SuspendInto(mover, store, *arena, agent, options);
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), 64 * kMib);
  ASSERT_TRUE(arena->record().has_checksum);

  CopyOptions compare;
  compare.expected = arena->record().checksum;
  ResumeFrom(mover, *arena, agent, 0, compare);
  agent.Verify();

  SuspendInto(mover, store, *arena, agent);
  char byte;
  ASSERT_EQ(::pread(arena->fd(), &byte, 1, 12345678), 1);
  byte = static_cast<char>(byte ^ 1);
  ASSERT_EQ(::pwrite(arena->fd(), &byte, 1, 12345678), 1);
  const uint64_t before = FreeGpuBytes(0);
  ASSERT_DONE(mover.PrepareLoad(arena->record().ranges, 0, Soon()));
  EXPECT_REFUSED(Code::kDataLoss, mover.Load(compare, Soon()));
  EXPECT_EQ(FreeGpuBytesSoon(0, before), before) << "what was created is released";
  EXPECT_NE(mover.pid(), 0);
}

TEST_F(MoverTest, MissingArenaPagesAreZero) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({8 * kMib, 6 * kMib, 4 * kMib}, 4);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  SuspendInto(mover, store, *arena, agent);
  // softgpu fills new memory with garbage.
  std::vector<Range> ranges = arena->record().ranges;
  ranges[1].stored_bytes = 0;
  ASSERT_DONE(mover.PrepareLoad(ranges, 0, Soon()));
  auto loaded = mover.Load({}, Soon());
  ASSERT_DONE(loaded);
  EXPECT_EQ(loaded->copied_bytes, 12 * kMib);
  EXPECT_EQ(loaded->cleared_bytes, 6 * kMib);
  auto fds = mover.Export(Soon());
  ASSERT_DONE(fds);
  ASSERT_DONE(mover.Release(Soon()));
  agent.TakeBack(*fds);
  agent.Verify({1});
}

TEST_F(MoverTest, LoadsFromAnArenaThatIsBeingFilled) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({6 * kMib, 2 * kMib, 32 * kMib}, 5);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  SuspendInto(mover, store, *arena, agent);
  std::string data(40 * kMib, '\0');
  ASSERT_EQ(::pread(arena->fd(), data.data(), data.size(), 0), static_cast<ssize_t>(data.size()));
  ASSERT_EQ(::pwrite(arena->fd(), std::string(data.size(), 'x').data(), data.size(), 0),
            static_cast<ssize_t>(data.size()));

  const uint64_t free = FreeGpuBytes(0);
  ASSERT_DONE(mover.PrepareLoad(arena->record().ranges, 20 * kMib, Soon()));
  std::vector<uint64_t> loaded, seen;
  CopyOptions options;
  options.filled = [&](uint64_t so_far) -> Result<uint64_t> {
    loaded.push_back(so_far);
    if (loaded.size() == 3) STASIS_TRY(mover.FreeBallast(Soon()));  // in the middle of the load
    const uint64_t more = std::min<uint64_t>(7 * kMib + 512, data.size() - so_far);
    EXPECT_EQ(::pwrite(arena->fd(), data.data() + so_far, more, static_cast<off_t>(so_far)),
              static_cast<ssize_t>(more));
    return so_far + more;
  };
  options.progress = [&](uint64_t done, uint64_t) { seen.push_back(done); };
  auto result = mover.Load(options, Soon());
  ASSERT_DONE(result);
  EXPECT_EQ(result->copied_bytes, 40 * kMib);
  EXPECT_EQ(loaded.size(), 6u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(FreeGpuBytesSoon(0, free - 40 * kMib), free - 40 * kMib);
  auto fds = mover.Export(Soon());
  ASSERT_DONE(fds);
  ASSERT_DONE(mover.Release(Soon()));
  agent.TakeBack(*fds);
  agent.Verify();

  // If the arena cannot be filled completely, nothing is loaded and everything is released.
  agent.Release();
  fds->clear();
  ASSERT_DONE(mover.PrepareLoad(arena->record().ranges, 20 * kMib, Soon()));
  options.filled = [&](uint64_t so_far) -> Result<uint64_t> {
    if (so_far == 0) return 8 * kMib;
    return Fail(Code::kDataLoss, "the image is damaged");
  };
  EXPECT_REFUSED(Code::kDataLoss, mover.Load(options, Soon()));
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
}

TEST_F(MoverTest, SpilledToDisk) {
  ArenaOptions options;
  options.spill_dir = disk_dir_;
  ArenaStore store = OpenStore(options);
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({2 * kMib, 70 * kMib, 40 * kMib}, 5);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  EXPECT_FALSE(arena->in_memory());
  EXPECT_TRUE(arena->path().starts_with(disk_dir_)) << arena->path();
  CopyResult saved, loaded;
  SuspendInto(mover, store, *arena, agent, {}, &saved);
  EXPECT_TRUE(saved.staged);
  { auto closed = std::move(*arena); }  // releases its lock
  ASSERT_DONE(mover.Detach(Soon()));
  // The arena is found by its key alone.
  auto again = OpenStore().Find(KeyOf(0));
  ASSERT_DONE(again);
  EXPECT_TRUE(again->record().complete);
  ResumeFrom(mover, *again, agent, 0, {}, &loaded);
  EXPECT_TRUE(loaded.staged);
  agent.Verify();
  EXPECT_DONE(store.Remove(std::move(*again)));
}

TEST_F(MoverTest, SuspendedDataOutlivesTheMover) {
  ArenaStore store = OpenStore();
  DriverAgent agent;
  agent.Create({20 * kMib, 2 * kMib}, 6);
  {
    Mover mover(OptionsFor(0));
    auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
    ASSERT_DONE(arena);
    SuspendInto(mover, store, *arena, agent);
    ASSERT_DONE(mover.Stop());
    EXPECT_EQ(mover.pid(), 0);
  }
  auto arena = OpenStore().Find(KeyOf(0));
  ASSERT_DONE(arena);
  ASSERT_TRUE(arena->record().complete);
  Mover mover(OptionsFor(0));
  ResumeFrom(mover, *arena, agent);
  agent.Verify();
}

TEST_F(MoverTest, MissingGpuMemoryIsDetectedBeforehand) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({64 * kMib}, 7);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  SuspendInto(mover, store, *arena, agent);
  const uint64_t free = FreeGpuBytes(0);
  auto refused = mover.PrepareLoad(arena->record().ranges, free - 32 * kMib, Soon());
  EXPECT_REFUSED(Code::kResourceExhausted, refused);
  EXPECT_NE(refused.error().message.find("free"), std::string::npos) << refused.error().message;
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
  // The ballast is held until it is freed.
  ASSERT_DONE(mover.PrepareLoad(arena->record().ranges, 100 * kMib, Soon()));
  EXPECT_EQ(FreeGpuBytesSoon(0, free - 164 * kMib), free - 164 * kMib);
  ASSERT_DONE(mover.FreeBallast(Soon()));
  EXPECT_EQ(FreeGpuBytesSoon(0, free - 64 * kMib), free - 64 * kMib);
  ASSERT_DONE(mover.Release(Soon()));  // cancelled
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
  ResumeFrom(mover, *arena, agent);
  agent.Verify();
}

TEST_F(MoverTest, TwoGpusConcurrentlyAndExchanged) {
  if (Gpus().size() < 2) GTEST_SKIP() << "this machine has one GPU";
  ArenaStore store = OpenStore();
  Mover movers[2] = {Mover(OptionsFor(0)), Mover(OptionsFor(1))};
  DriverAgent agents[2] = {DriverAgent(0), DriverAgent(1)};
  std::vector<UniqueFd> fds[2];
  std::optional<Arena> arenas[2];
  for (int i = 0; i < 2; ++i) {
    agents[i].Create({40 * kMib, 8 * kMib}, 10 + static_cast<uint64_t>(i));
    auto arena = store.Acquire(KeyOf(i), ::getuid(), agents[i].ranges());
    ASSERT_DONE(arena);
    arenas[i] = std::move(*arena);
    fds[i] = agents[i].Export();
    agents[i].Release();
  }
  auto suspend = [&](int i) {
    EXPECT_DONE(movers[i].Attach(*arenas[i], Soon()));
    EXPECT_DONE(movers[i].Save(arenas[i]->record().ranges, Raw(fds[i]), {}, Soon()));
    EXPECT_DONE(movers[i].Release(Soon()));
  };
  std::thread other([&] { suspend(1); });
  suspend(0);
  other.join();
  for (auto& list : fds) list.clear();
  // Each program resumes on the other's GPU.
  auto resume = [&](int i) {
    const int to = 1 - i;
    EXPECT_DONE(movers[to].Attach(*arenas[i], Soon()));
    EXPECT_DONE(movers[to].PrepareLoad(arenas[i]->record().ranges, 0, Soon()));
    EXPECT_DONE(movers[to].Load({}, Soon()));
    auto exported = movers[to].Export(Soon());
    ASSERT_DONE(exported);
    fds[i] = std::move(*exported);
    EXPECT_DONE(movers[to].Release(Soon()));
  };
  std::thread second([&] { resume(1); });
  resume(0);
  second.join();
  for (int i = 0; i < 2; ++i) {
    DriverAgent there(1 - i);
    there.Create({40 * kMib, 8 * kMib}, 10 + static_cast<uint64_t>(i));
    there.Release();
    there.TakeBack(fds[i]);
    there.Verify();
  }
}

TEST_F(MoverTest, AGrownArena) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  uint64_t ready = 0;
  for (uint64_t mib : {8, 40, 6}) {
    agent.Create({mib * kMib, 2 * kMib}, mib);
    auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
    ASSERT_DONE(arena);
    CopyResult saved;
    SuspendInto(mover, store, *arena, agent, {}, &saved);
    // Registered chunks stay registered, except a last chunk that has grown.
    EXPECT_EQ(saved.cold_bytes, arena->capacity_bytes() - ready);
    ready =
        mib == 8 ? arena->capacity_bytes() / ChunkBytes() * ChunkBytes() : arena->capacity_bytes();
    ResumeFrom(mover, *arena, agent);
    agent.Verify();
    agent.Release();
    // The mover holds the lock while the arena is attached.
    EXPECT_REFUSED(Code::kAborted, [&] {
      { auto closed = std::move(*arena); }
      return OpenStore().Find(KeyOf(0));
    }());
    ASSERT_DONE(mover.Detach(Soon()));
  }
}

TEST_F(MoverTest, TheBusIsMeasuredAndTheArenaKeepsItsBytes) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({32 * kMib}, 8);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  SuspendInto(mover, store, *arena, agent);
  const uint64_t free = FreeGpuBytes(0);
  auto speed = mover.Measure(1u << 30, Soon());
  ASSERT_DONE(speed);
  EXPECT_EQ(speed->bytes, 32 * kMib);
  EXPECT_GT(speed->to_arena_bytes_per_s, 0);
  EXPECT_GT(speed->to_gpu_bytes_per_s, 0);
  EXPECT_EQ(FreeGpuBytesSoon(0, free), free);
  ResumeFrom(mover, *arena, agent);
  agent.Verify();
}

TEST_F(MoverTest, TheArenaIsPreparedInAdvance) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create({32 * kMib}, 9);
  ASSERT_DONE(store.Reserve(64 * kMib));
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  EXPECT_EQ(arena->capacity_bytes(), 64 * kMib) << "the reserved one";
  ASSERT_DONE(mover.Attach(*arena, Soon()));
  ASSERT_DONE(mover.Warm(32 * kMib, {}, Soon()));
  CopyResult saved;
  SuspendInto(mover, store, *arena, agent, {}, &saved);
  EXPECT_EQ(saved.cold_bytes, 0u);
  ResumeFrom(mover, *arena, agent);
  agent.Verify();
}

// Settings of the program that started the mover do not hide devices from it.
TEST_F(MoverTest, DevicesAreFoundByUuidDespiteTheEnvironment) {
  const size_t last = Gpus().size() - 1;
  ::setenv("CUDA_VISIBLE_DEVICES", last == 0 ? "" : "0", 1);
  Mover mover(OptionsFor(static_cast<int>(last)));
  EXPECT_DONE(mover.Start(Soon()));
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(MoverTest, ManyRoundsLeaveNothingBehind) {
  ArenaStore store = OpenStore();
  Mover mover(OptionsFor(0));
  DriverAgent agent;
  agent.Create(std::vector<uint64_t>(8, 2 * kMib), 12);
  auto arena = store.Acquire(KeyOf(0), ::getuid(), agent.ranges());
  ASSERT_DONE(arena);
  struct Held {
    size_t theirs, ours;
    uint64_t gpu, rss;
  };
  auto held = [&] {
    const process::HostPid pid{mover.pid()};
    return Held{process::ReadOpenFiles(pid)->size(), process::ReadOpenFiles({::getpid()})->size(),
                FreeGpuBytes(0), process::ReadMemoryUse(pid)->anonymous_bytes};
  };
  Held first = {};
  for (int round = 0; round < 40; ++round) {
    SuspendInto(mover, store, *arena, agent);
    ResumeFrom(mover, *arena, agent);
    if (round == 4) first = held();
  }
  agent.Verify();
  const Held last = held();
  EXPECT_EQ(last.theirs, first.theirs);
  EXPECT_EQ(last.ours, first.ours);
  EXPECT_EQ(last.gpu, first.gpu);
  EXPECT_LE(last.rss, first.rss + 4 * kMib);
}

// Returns true if the process ends within this time.
bool EndsWithin(pid_t pid, std::chrono::milliseconds limit) {
  const auto stat = process::ReadStat({pid});
  if (!stat) return true;
  auto pidfd = process::OpenPidfd(stat->id);
  return !pidfd || ipc::AwaitReadable(pidfd->get(), Deadline::In(limit));
}

TEST_F(MoverTest, AnIdleResidentMoverExitsAndIsReplaced) {
  MoverOptions options = OptionsFor(0);
  options.idle_timeout = std::chrono::milliseconds(100);
  options.resident_dir = memory_dir_ + "/residents";
  Mover mover(options);
  ASSERT_DONE(mover.Start(Soon()));
  const pid_t first = mover.pid();
  ASSERT_DONE(mover.Stop());
  EXPECT_TRUE(EndsWithin(first, std::chrono::minutes(1)));
  ASSERT_DONE(mover.Start(Soon()));
  EXPECT_NE(mover.pid(), first);
}

// The client may take any time between two requests.
TEST_F(MoverTest, AMoverWithAClientIsNotIdle) {
  MoverOptions options = OptionsFor(0);
  options.idle_timeout = std::chrono::milliseconds(1);
  for (const bool resident : {true, false}) {
    SCOPED_TRACE(resident);
    options.resident_dir = resident ? memory_dir_ + "/residents" : "";
    Mover mover(options);
    ASSERT_DONE(mover.Start(Soon()));
    EXPECT_FALSE(EndsWithin(mover.pid(), std::chrono::milliseconds(100)));
  }
}

}  // namespace
}  // namespace stasis::dataplane::testing
