#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <future>

#include "base/file.h"
#include "dataplane/arena.h"
#include "dataplane/arena_file.h"

namespace stasis::dataplane {
namespace {

bool GoOn() { return true; }

class ArenaReadyTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMib = 1u << 20;
  static constexpr uid_t kOwner = 1000;

  void SetUp() override {
    char memory[] = "/dev/shm/stasis-ready-test.XXXXXX";
    char disk[] = "/var/tmp/stasis-ready-test.XXXXXX";
    memory_ = ::mkdtemp(memory);
    disk_ = ::mkdtemp(disk);
    paths_ = {disk_ + "/run", disk_ + "/data"};
    ASSERT_TRUE(MakeDirs(paths_.run));
    key_ = {process::ReadStat({::getpid()})->id, {"GPU-1"}};
  }
  void TearDown() override {
    std::filesystem::remove_all(memory_);
    std::filesystem::remove_all(disk_);
  }
  ArenaStore Store(ArenaOptions options = {}) const {
    options.place = memory_;
    auto store = ArenaStore::Open(paths_, options);
    if (!store) throw std::runtime_error(store.error().ToString());
    return std::move(*store);
  }
  // Leaves data of the process that its next suspend compares with.
  void Keep(uint64_t bytes) const {
    ArenaStore store = Store();
    auto arena = store.Acquire(key_, kOwner, Ranges(bytes));
    ASSERT_TRUE(arena);
    ArenaHashes hashes{{}, std::vector<Id128>(BlockCount(arena->record().ranges))};
    ASSERT_TRUE(store.Complete(*arena, {}, hashes));
    ASSERT_TRUE(store.KeepData(std::move(*arena)));
  }
  static std::vector<Range> Ranges(uint64_t bytes) { return {{0x1000, bytes, 0, bytes}}; }
  uint64_t MakeReady(const ArenaKey& key, uint64_t bytes) const {
    auto ready = Store().MakeReady(key, kOwner, bytes, GoOn);
    EXPECT_TRUE(ready) << ready.error().ToString();
    return ready.value_or(0);
  }
  std::vector<std::string> States() const {
    std::vector<std::string> states;
    const std::vector<ArenaInfo> arenas = *Store().List();
    for (const ArenaInfo& info : arenas) states.emplace_back(StateName(info));
    return states;
  }
  uint64_t UsedMib() const {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(memory_)) {
      struct stat st;
      if (::stat(entry.path().c_str(), &st) == 0) bytes += uint64_t(st.st_blocks) * 512;
    }
    return bytes / kMib;
  }

  std::string memory_, disk_;
  Paths paths_;
  ArenaKey key_;
};

TEST_F(ArenaReadyTest, IsUsedByTheNextSuspendOfTheProcess) {
  EXPECT_EQ(MakeReady(key_, 200 * kMib), 200 * kMib) << "in several steps";
  EXPECT_EQ(UsedMib(), 200u);
  ASSERT_EQ(States(), std::vector<std::string>{"ready"});
  const auto listed = Store().List();
  EXPECT_EQ(listed->front().key, key_);
  struct stat before, after;
  ASSERT_EQ(::stat(listed->front().path.c_str(), &before), 0);

  ArenaStore store = Store();
  auto arena = store.Acquire(key_, kOwner, Ranges(190 * kMib));
  ASSERT_TRUE(arena) << arena.error().ToString();
  ASSERT_EQ(::fstat(arena->fd(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino) << "a mover that has it registered knows it by its inode";
  EXPECT_EQ(UsedMib(), 200u);
  EXPECT_EQ(store.MakeReady(key_, kOwner, 400 * kMib, GoOn).value_or(1), 0u)
      << "nothing is made ready for a process that is being suspended";
}

TEST_F(ArenaReadyTest, GrowsWhatIsThere) {
  EXPECT_EQ(MakeReady(key_, 4 * kMib), 4 * kMib);
  EXPECT_EQ(MakeReady(key_, 10 * kMib), 10 * kMib);
  EXPECT_EQ(MakeReady(key_, 6 * kMib), 10 * kMib) << "never shrinks";
  EXPECT_EQ(UsedMib(), 10u);
  // Data that is kept for the next suspend grows in place, and stays valid.
  Keep(10 * kMib);
  EXPECT_EQ(MakeReady(key_, 16 * kMib), 16 * kMib);
  EXPECT_EQ(States(), std::vector<std::string>{"kept"});
  ArenaStore store = Store();
  auto arena = store.Acquire(key_, kOwner, Ranges(16 * kMib));
  ASSERT_TRUE(arena);
  EXPECT_TRUE(arena->knows_data());
}

// Without the file, the suspend would need the memory twice.
TEST_F(ArenaReadyTest, ASuspendWaitsForTheLockOfTheFile) {
  for (const bool kept : {true, false}) {
    kept ? Keep(8 * kMib) : static_cast<void>(MakeReady(key_, 8 * kMib));
    ArenaStore store = Store();
    auto held = store.OpenForNext(key_);
    ASSERT_TRUE(held);
    auto suspend = std::async(std::launch::async, [this] {
      auto arena = Store().Acquire(key_, kOwner, Ranges(8 * kMib));
      return arena && arena->knows_data();
    });
    EXPECT_EQ(suspend.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    held = Fail(Code::kNotFound, "released");
    EXPECT_EQ(suspend.get(), kept);
    EXPECT_EQ(UsedMib(), 8u);
    ASSERT_TRUE(store.Remove(*store.Find(key_)));
  }
}

TEST_F(ArenaReadyTest, NothingGrowsWhileTheProcessIsSuspended) {
  Keep(4 * kMib);
  const std::string path = DataPath(Store().places().front().path, key_);
  ASSERT_TRUE(WriteFileDurably(path, "data of the suspend"));
  EXPECT_EQ(MakeReady(key_, 16 * kMib), 0u);
  EXPECT_EQ(UsedMib(), 4u);
}

TEST_F(ArenaReadyTest, TheListTellsWhatIsAllocated) {
  MakeReady(key_, 4 * kMib);
  const std::string path = Store().List()->front().path;
  ASSERT_EQ(::truncate(path.c_str(), 1 << 30), 0);
  EXPECT_EQ(Store().List()->front().allocated_bytes, 4 * kMib);
}

TEST_F(ArenaReadyTest, TakesFreeMemoryOfTheSameOwnerOnly) {
  ArenaStore store = Store();
  for (const uid_t owner : {kOwner, kOwner + 1}) {
    auto arena = store.Acquire(key_, owner, Ranges(8 * kMib));
    ASSERT_TRUE(arena);
    ASSERT_TRUE(store.Recycle(std::move(*arena)));
  }
  ASSERT_EQ(UsedMib(), 16u);
  EXPECT_EQ(MakeReady(key_, 8 * kMib), 8 * kMib);
  EXPECT_EQ(UsedMib(), 16u);
  ArenaKey other = key_;
  other.gpu.value = "GPU-2";
  EXPECT_EQ(MakeReady(other, 8 * kMib), 8 * kMib);
  EXPECT_EQ(UsedMib(), 24u);
}

TEST_F(ArenaReadyTest, StopsInTimeAndAtTheLimit) {
  int steps = 0;
  auto ready = Store().MakeReady(key_, kOwner, 1024 * kMib, [&] { return ++steps < 2; });
  ASSERT_TRUE(ready);
  EXPECT_LT(*ready, 256 * kMib);
  ArenaOptions options;
  options.most_bytes = *ready + 6 * kMib;
  ready = Store(options).MakeReady(key_, kOwner, 1024 * kMib, GoOn);
  ASSERT_FALSE(ready);
  EXPECT_EQ(ready.error().code, Code::kResourceExhausted) << ready.error().ToString();
}

TEST_F(ArenaReadyTest, IsLeftToAnotherProcessThatUsesIt) {
  MakeReady(key_, 4 * kMib);
  ArenaStore store = Store();
  auto held = store.OpenForNext(key_);
  ASSERT_TRUE(held);
  EXPECT_EQ(MakeReady(key_, 8 * kMib), 0u);
  EXPECT_EQ(store.FreeReady(key_), 0u);
}

TEST_F(ArenaReadyTest, IsFreedWithItsProcessAndOnRequest) {
  ArenaKey ended = key_;
  ++ended.process.start_time;
  MakeReady(key_, 4 * kMib);
  MakeReady(ended, 2 * kMib);
  EXPECT_EQ(Store().Sweep().value_or(0), 2 * kMib);
  EXPECT_EQ(Store().FreeReady(key_), 4 * kMib);
  MakeReady(key_, 4 * kMib);
  EXPECT_EQ(Store().FreeUnused(/*keep_of_running=*/false).value_or(0), 4 * kMib);
  EXPECT_EQ(UsedMib(), 0u);
}

TEST_F(ArenaReadyTest, MemoryOfRunningProcessesCanBeKept) {
  MakeReady(key_, 4 * kMib);
  ASSERT_TRUE(Store().Reserve(2 * kMib));
  EXPECT_EQ(Store().FreeUnused(/*keep_of_running=*/true).value_or(0), 2 * kMib);
  EXPECT_EQ(Store().FreeUnused(/*keep_of_running=*/false).value_or(0), 4 * kMib);
}

// With two places in memory, the one with more free space comes first, and making memory ready in
// it may change the order.
class TwoPlacesTest : public ArenaReadyTest {
 protected:
  void SetUp() override {
    ArenaReadyTest::SetUp();
    paths_.run = memory_ + "/run";
    ASSERT_TRUE(MakeDirs(paths_.run));
    key_.gpu.value = "GPU-two-places";
    if (Store().places().size() < 2) GTEST_SKIP() << "there is one place in memory";
  }
  void TearDown() override {
    const std::vector<ArenaInfo> arenas = *Store().List();
    for (const ArenaInfo& info : arenas) {
      if (info.key == key_) ::unlink(info.path.c_str());
    }
    ArenaReadyTest::TearDown();
  }
  ArenaStore Store(ArenaOptions options = {}) const {
    options.may_mount = false;
    auto store = ArenaStore::Open(paths_, options);
    if (!store) throw std::runtime_error(store.error().ToString());
    return std::move(*store);
  }
  // Makes memory ready in the place that comes second afterwards. Returns its inode.
  ino_t ReadyInSecondPlace(uint64_t bytes) const {
    ArenaStore store = Store();
    EXPECT_EQ(store.MakeReady(key_, kOwner, bytes, GoOn).value_or(0), bytes);
    const std::string second = ReadyPath(store.places()[1], key_);
    std::filesystem::copy_file(ReadyPath(store.places()[0], key_), second);
    std::filesystem::remove(ReadyPath(store.places()[0], key_));
    struct stat st = {};
    EXPECT_EQ(::stat(second.c_str(), &st), 0);
    return st.st_ino;
  }
};

TEST_F(TwoPlacesTest, WhatIsReadyInTheSecondPlaceIsUsed) {
  const uint64_t ready = ReadyInSecondPlace(8 * kMib);
  auto arena = Store().Acquire(key_, kOwner, Ranges(6 * kMib));
  ASSERT_TRUE(arena) << arena.error().ToString();
  struct stat st;
  ASSERT_EQ(::fstat(arena->fd(), &st), 0);
  EXPECT_EQ(st.st_ino, ready);
}

TEST_F(TwoPlacesTest, WhatIsReadyInTheSecondPlaceGrowsThere) {
  ReadyInSecondPlace(8 * kMib);
  ArenaStore store = Store();
  EXPECT_EQ(store.MakeReady(key_, kOwner, 16 * kMib, GoOn).value_or(0), 16 * kMib);
  EXPECT_FALSE(PathExists(ReadyPath(store.places()[0], key_)));
}

TEST_F(TwoPlacesTest, ASuspendOfAnotherProcessFreesBothPlaces) {
  ReadyInSecondPlace(8 * kMib);
  ArenaOptions options;
  options.most_bytes = 12 * kMib;
  ArenaKey other = key_;
  other.gpu.value = "GPU-other";
  ArenaStore store = Store(options);
  auto arena = store.Acquire(other, kOwner, Ranges(10 * kMib));
  ASSERT_TRUE(arena) << arena.error().ToString();
  EXPECT_FALSE(PathExists(ReadyPath(store.places()[1], key_)));
  ASSERT_TRUE(store.Remove(std::move(*arena)));
}

// Another suspend may need the memory more.
TEST_F(ArenaReadyTest, IsFreedIfASuspendFindsNoRoom) {
  MakeReady(key_, 8 * kMib);
  ArenaKey other = key_;
  other.gpu.value = "GPU-2";
  ArenaOptions options;
  options.most_bytes = 12 * kMib;
  auto arena = Store(options).Acquire(other, kOwner, Ranges(10 * kMib));
  ASSERT_TRUE(arena) << arena.error().ToString();
  EXPECT_EQ(UsedMib(), 10u);
}

}  // namespace
}  // namespace stasis::dataplane
