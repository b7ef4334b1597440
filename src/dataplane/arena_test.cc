#include "dataplane/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/checksum.h"
#include "base/file.h"
#include "base/subprocess.h"
#include "dataplane/arena_file.h"

namespace stasis::dataplane {
namespace {

constexpr uint64_t kMib = 1u << 20;
constexpr char kGpu[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";

class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char memory[] = "/dev/shm/stasis-arena-test.XXXXXX";
    char disk[] = "/var/tmp/stasis-arena-test.XXXXXX";
    memory_ = ::mkdtemp(memory);
    disk_ = ::mkdtemp(disk);
    paths_ = {disk_ + "/run", disk_ + "/data"};
    ASSERT_TRUE(MakeDirs(paths_.run));
    me_ = process::ReadStat({::getpid()})->id;
  }
  void TearDown() override {
    ::umount2((paths_.run + "/arena").c_str(), MNT_DETACH);
    std::filesystem::remove_all(memory_);
    std::filesystem::remove_all(disk_);
  }
  ArenaStore Store(ArenaOptions options = {}) {
    if (options.place.empty()) options.place = memory_;
    auto store = ArenaStore::Open(paths_, options);
    if (!store) throw std::runtime_error(store.error().ToString());
    return std::move(*store);
  }
  ArenaKey Me() const { return {me_, {kGpu}}; }
  static std::vector<Range> Ranges(uint64_t bytes) { return {{0x1000, bytes, 0, bytes}}; }
  uint64_t Used() const {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(memory_)) {
      struct stat st;
      if (::stat(entry.path().c_str(), &st) == 0)
        bytes += static_cast<uint64_t>(st.st_blocks) * 512;
    }
    return bytes / kMib;
  }

  std::string memory_, disk_;
  Paths paths_;
  process::ProcessId me_;
};

#define EXPECT_CODE(code_, expression)                                                  \
  do {                                                                                  \
    auto&& done = (expression);                                                         \
    ASSERT_FALSE(done) << #expression;                                                  \
    EXPECT_EQ(CodeName(done.error().code), CodeName(code_)) << done.error().ToString(); \
  } while (0)

TEST_F(ArenaTest, IsAllocatedAndFoundAgain) {
  ArenaStore store = Store();
  auto arena = store.Acquire(Me(), 1000, Ranges(5 * kMib));
  ASSERT_TRUE(arena) << arena.error().ToString();
  EXPECT_EQ(arena->capacity_bytes(), 6 * kMib) << "whole huge pages";
  EXPECT_EQ(Used(), 6u) << "allocated to the last byte";
  struct stat st;
  ASSERT_EQ(::fstat(arena->fd(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(memory_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700u);

  EXPECT_CODE(Code::kAborted, Store().Find(Me()));
  EXPECT_CODE(Code::kAborted, Store().Acquire(Me(), 1000, Ranges(kMib)));
  ASSERT_EQ(::pwrite(arena->fd(), "data", 4, 5), 4);
  { auto closed = std::move(*arena); }
  EXPECT_FALSE(Store().Find(Me())->record().complete) << "killed before it was";
  arena = Store().Acquire(Me(), 1000, Ranges(5 * kMib));
  ASSERT_TRUE(store.Complete(*arena));
  { auto closed = std::move(*arena); }

  auto found = Store().Find(Me());
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->record().complete);
  EXPECT_EQ(found->record().ranges, Ranges(5 * kMib));
  EXPECT_EQ(found->record().owner, 1000u);
  char text[4];
  ASSERT_EQ(::pread(found->fd(), text, 4, 5), 4);
  EXPECT_EQ(std::string(text, 4), "data");
}

TEST_F(ArenaTest, MemoryIsUsedAgainButNotForAnotherUser) {
  ArenaStore store = Store();
  auto arena = store.Acquire(Me(), 1000, Ranges(4 * kMib));
  ASSERT_EQ(::pwrite(arena->fd(), "secret", 6, 0), 6);
  struct stat first, second;
  ASSERT_EQ(::fstat(arena->fd(), &first), 0);
  ASSERT_TRUE(store.Recycle(std::move(*arena)));
  EXPECT_CODE(Code::kNotFound, store.Find(Me()));

  auto again = store.Acquire({me_, {"GPU-other"}}, 1000, Ranges(2 * kMib));
  ASSERT_TRUE(again);
  ASSERT_EQ(::fstat(again->fd(), &second), 0);
  EXPECT_EQ(first.st_ino, second.st_ino) << "the same memory";
  EXPECT_EQ(again->capacity_bytes(), 4 * kMib) << "never shrinks";
  ASSERT_TRUE(store.Recycle(std::move(*again)));

  auto other = store.Acquire(Me(), 1001, Ranges(2 * kMib));
  ASSERT_TRUE(other);
  char text[6] = {};
  ASSERT_EQ(::pread(other->fd(), text, 6, 0), 6);
  EXPECT_EQ(std::string(text, 6), std::string(6, '\0'));
}

namespace {
Id128 Id(const char* text) { return Checksum(text); }
}  // namespace

TEST_F(ArenaTest, KeptDataIsKnownToTheNextSuspendOfTheSameProcess) {
  ArenaStore store = Store();
  const std::vector<Range> ranges = {{0x1000, 2 * kMib, 0, 2 * kMib},
                                     {0x9000000, 3 * kMib, 2 * kMib, 3 * kMib}};
  const ArenaHashes hashes{Id("key"), {Id("a"), Id("b"), {}}};
  auto keep = [&](const std::optional<ArenaHashes>& with) {
    auto arena = store.Acquire(Me(), 1000, ranges);
    ASSERT_TRUE(arena);
    ASSERT_TRUE(store.Complete(*arena, {}, with));
    ASSERT_TRUE(store.KeepData(std::move(*arena)));
  };
  auto known = [&](uid_t owner, const Id128& key, const std::vector<Range>& now) {
    auto arena = store.Acquire(Me(), owner, ranges);
    EXPECT_TRUE(arena && store.Reshape(*arena, now));
    EXPECT_EQ(store.List()->size(), 1u);
    auto found = arena->TakeKnown(key);
    EXPECT_FALSE(arena->knows_data());
    EXPECT_TRUE(store.Remove(std::move(*arena)));
    return found;
  };
  keep(hashes);
  // Find() does not return kept data, because kept data is never the only copy.
  EXPECT_CODE(Code::kNotFound, store.Find(Me()));
  ASSERT_EQ(store.List()->size(), 1u);
  EXPECT_TRUE(store.List()->front().kept);
  EXPECT_EQ(known(1000, hashes.key, ranges), hashes.blocks);
  keep(hashes);
  EXPECT_TRUE(known(1001, hashes.key, ranges).empty()) << "another user's";
  keep(hashes);
  EXPECT_TRUE(known(1000, Id("other"), ranges).empty()) << "another key";
  // Hashes belong to the place in the file.
  keep(hashes);
  std::vector<Range> moved = {{0x5000, 3 * kMib, 0, 3 * kMib}, {0x1, 3 * kMib, 2 * kMib, 3 * kMib}};
  moved[1].arena_offset = 4 * kMib;
  EXPECT_EQ(known(1000, hashes.key, moved), std::vector<Id128>(4));
  keep({});
  EXPECT_FALSE(store.List()->front().kept) << "without hashes it is just memory";
}

TEST_F(ArenaTest, KnownDataIsForgottenWhenItMayBeOverwritten) {
  ArenaStore store = Store();
  const ArenaHashes hashes{Id("key"), {Id("a")}};
  auto arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
  ASSERT_TRUE(arena);
  ASSERT_TRUE(store.Complete(*arena, {}, hashes));
  ASSERT_TRUE(store.KeepData(std::move(*arena)));
  // The suspend fails before it writes.
  arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
  ASSERT_TRUE(arena);
  ASSERT_TRUE(store.KeepData(std::move(*arena)));
  EXPECT_TRUE(store.List()->front().kept);
  // The suspend is killed before it writes.
  arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
  ASSERT_TRUE(arena);
  EXPECT_TRUE(arena->knows_data());
  { auto killed = std::move(*arena); }
  arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
  ASSERT_TRUE(arena);
  EXPECT_FALSE(arena->knows_data()) << "nobody can say what the dead one has written";
  // The suspend has written data.
  ASSERT_TRUE(store.Complete(*arena, {}, hashes));
  ASSERT_TRUE(store.Reshape(*arena, Ranges(2 * kMib)));
  EXPECT_EQ(arena->TakeKnown(hashes.key), hashes.blocks);
  ASSERT_TRUE(store.KeepData(std::move(*arena)));
  EXPECT_FALSE(store.List()->front().kept);
}

TEST_F(ArenaTest, KeptDataIsFreedWhenMemoryIsNeeded) {
  if (::mount("tmpfs", memory_.c_str(), "tmpfs", 0, "size=32m,mode=0700") != 0) {
    GTEST_SKIP() << "cannot mount a tmpfs here";
  }
  ArenaStore store = Store();
  auto arena = store.Acquire(Me(), 1000, Ranges(12 * kMib));
  ASSERT_TRUE(arena);
  const ArenaHashes hashes{Id("key"), std::vector<Id128>(6, Id("a"))};
  ASSERT_TRUE(store.Complete(*arena, {}, hashes));
  ASSERT_TRUE(store.KeepData(std::move(*arena)));
  EXPECT_TRUE(store.List()->front().kept);
  const ArenaKey other{{{::getppid()}, 1}, {kGpu}};
  auto larger = store.Acquire(other, 1000, Ranges(28 * kMib));
  EXPECT_TRUE(larger) << larger.error().ToString();
  EXPECT_EQ(store.List()->size(), 1u);
  // Data that is larger than half of the tmpfs is not kept.
  ASSERT_TRUE(store.Complete(*larger, {}, ArenaHashes{Id("key"), std::vector<Id128>(14, Id("a"))}));
  ASSERT_TRUE(store.KeepData(std::move(*larger)));
  EXPECT_TRUE(store.List()->empty());
  ::umount2(memory_.c_str(), MNT_DETACH);
}

TEST_F(ArenaTest, GrowsInPlace) {
  ArenaStore store = Store();
  auto arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
  ASSERT_TRUE(store.Complete(*arena));
  { auto closed = std::move(*arena); }
  arena = store.Acquire(Me(), 1000, Ranges(8 * kMib));
  ASSERT_TRUE(arena);
  EXPECT_EQ(arena->capacity_bytes(), 8 * kMib);
  EXPECT_EQ(Used(), 8u);
  EXPECT_FALSE(arena->record().complete);
}

TEST_F(ArenaTest, TooLittleMemoryIsRefusedBeforeAnythingIsTaken) {
  ArenaStore store = Store();
  auto refused = store.Acquire(Me(), 1000, Ranges(1ull << 43));
  EXPECT_CODE(Code::kResourceExhausted, refused);
  EXPECT_NE(refused.error().message.find("8192.00 GiB of host memory are needed"),
            std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find("free"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(memory_));
}

TEST_F(ArenaTest, AFullFileSystemIsRefusedAndFreeFilesMakeRoom) {
  if (::mount("stasis-test", memory_.c_str(), "tmpfs", 0, "size=16m,mode=0700") != 0) {
    GTEST_SKIP() << "no right to mount a small tmpfs";
  }
  {
    ArenaStore store = Store();
    ASSERT_TRUE(store.Reserve(6 * kMib));
    auto arena = store.Acquire({me_, {"GPU-a"}}, 12345, Ranges(6 * kMib));
    ASSERT_TRUE(arena) << arena.error().ToString();
    // 4 MiB are free, and 6 MiB are in an unused file.
    auto other = store.Acquire(Me(), 12345, Ranges(8 * kMib));
    ASSERT_TRUE(other) << other.error().ToString();
    EXPECT_CODE(Code::kResourceExhausted, store.Acquire({me_, {"GPU-b"}}, 12345, Ranges(4 * kMib)));
    // Without the check of available memory, the allocation itself fails with the same error.
    ArenaOptions bold;
    bold.ignore_memory_check = true;
    EXPECT_CODE(Code::kResourceExhausted,
                Store(bold).Acquire({me_, {"GPU-b"}}, 12345, Ranges(4 * kMib)));
  }
  ::umount2(memory_.c_str(), MNT_DETACH);
}

// Returns the entries of a folder, hidden ones included.
std::vector<std::string> EntriesOf(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

TEST_F(ArenaTest, WhatExceedsTheLimitIsInFiles) {
  const std::string disk = disk_ + "/store";
  ArenaOptions options;
  options.most_own_bytes = 10 * kMib;
  // Without a folder the limit is a refusal.
  EXPECT_CODE(Code::kResourceExhausted, Store(options).Acquire(Me(), 1000, Ranges(12 * kMib)));
  options.overflow_dir = disk;
  {
    ArenaStore store = Store(options);
    auto first = store.Acquire({me_, {"GPU-a"}}, 1000, Ranges(6 * kMib));
    ASSERT_TRUE(first) << first.error().ToString();
    EXPECT_TRUE(first->in_memory());
    EXPECT_TRUE(store.why_overflow().empty());
    EXPECT_FALSE(PathExists(disk));
    auto second = store.Acquire({me_, {"GPU-b"}}, 1000, Ranges(6 * kMib));
    ASSERT_TRUE(second) << second.error().ToString() << second.error().hint;
    EXPECT_FALSE(second->in_memory());
    EXPECT_TRUE(second->path().starts_with(disk + "/.stasis-spill-")) << second->path();
    EXPECT_NE(store.why_overflow().find("--arena-limit allows 10 MiB"), std::string::npos);
    // A third one still fits, and an arena in memory does not grow beyond the limit.
    auto third = store.Acquire({me_, {"GPU-c"}}, 1000, Ranges(4 * kMib));
    ASSERT_TRUE(third) << third.error().ToString();
    EXPECT_TRUE(third->in_memory());
    EXPECT_CODE(Code::kResourceExhausted, store.Reshape(*third, Ranges(8 * kMib)));
    EXPECT_TRUE(store.Reshape(*second, Ranges(20 * kMib)));
    EXPECT_TRUE(store.Complete(*second, Id128{}));
  }
  // Any later command finds it, and removes the folder with it.
  ArenaStore other = Store();
  auto found = other.Find({me_, {"GPU-b"}});
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_TRUE(found->record().complete);
  ASSERT_TRUE(other.Recycle(std::move(*found)));
  EXPECT_TRUE(EntriesOf(disk).empty());
  EXPECT_EQ(*ReadFile(paths_.run + "/arena-spill"), "") << "later commands would look there";
}

TEST_F(ArenaTest, AGrownArenaCountsAgainstTheLimit) {
  ArenaOptions options;
  options.most_own_bytes = 10 * kMib;
  options.overflow_dir = disk_;
  ArenaStore store = Store(options);
  auto first = store.Acquire({me_, {"GPU-a"}}, 1000, Ranges(4 * kMib));
  ASSERT_TRUE(first) << first.error().ToString();
  ASSERT_TRUE(store.Reshape(*first, Ranges(8 * kMib)));
  auto second = store.Acquire({me_, {"GPU-b"}}, 1000, Ranges(4 * kMib));
  ASSERT_TRUE(second) << second.error().ToString();
  EXPECT_TRUE(first->in_memory());
  EXPECT_FALSE(second->in_memory());
}

TEST_F(ArenaTest, AListOfFoldersThatCannotBeReadIsNotReplaced) {
  const std::string list = paths_.run + "/arena-spill";
  const std::string content(2 << 20, 'x');  // longer than any list
  ASSERT_TRUE(WriteFileDurably(list, content));
  EXPECT_FALSE(ArenaStore::Open(paths_, {}));
  EXPECT_FALSE(OpenOverflow(paths_, disk_));
  EXPECT_EQ(std::filesystem::file_size(list), content.size());
}

TEST_F(ArenaTest, ItIsKnownBeforeWhetherAllArenasFit) {
  ArenaOptions options;
  options.most_own_bytes = 10 * kMib;
  options.overflow_dir = disk_;
  ArenaStore store = Store(options);
  EXPECT_TRUE(*store.FitInMemory({4 * kMib, 4 * kMib}));
  EXPECT_FALSE(*store.FitInMemory({6 * kMib, 6 * kMib}));
  store.KeepFree({MemoryAvailable(), 0});
  EXPECT_FALSE(*store.FitInMemory({4 * kMib, 4 * kMib}));
}

TEST_F(ArenaTest, MemoryForTheDriverStaysFree) {
  ArenaOptions options;
  options.overflow_dir = disk_;
  options.keep_free = {MemoryAvailable(), 0};
  ArenaStore store = Store(options);
  auto arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
  ASSERT_TRUE(arena) << arena.error().ToString();
  EXPECT_FALSE(arena->in_memory());
  EXPECT_NE(store.why_overflow().find("for the driver"), std::string::npos) << store.why_overflow();
}

TEST_F(ArenaTest, MemoryForTheDriverIsNotInTheFileSystem) {
  if (::mount("stasis-test", memory_.c_str(), "tmpfs", 0, "size=8m,mode=0700") != 0) {
    GTEST_SKIP() << "no right to mount a small tmpfs";
  }
  ArenaOptions options;
  options.overflow_dir = disk_;
  options.keep_free = {64 * kMib, 64 * kMib};
  auto arena = Store(options).Acquire(Me(), 1000, Ranges(4 * kMib));
  ASSERT_TRUE(arena) << arena.error().ToString();
  EXPECT_TRUE(arena->in_memory());
  // Without the check nothing is kept free.
  options.keep_free = {MemoryAvailable(), 0};
  options.ignore_memory_check = true;
  auto other = Store(options).Acquire({me_, {"GPU-b"}}, 1000, Ranges(2 * kMib));
  ASSERT_TRUE(other) << other.error().ToString();
  EXPECT_TRUE(other->in_memory());
  ::umount2(memory_.c_str(), MNT_DETACH);
}

TEST_F(ArenaTest, FilesOfTheOverflowAreOnADisk) {
  ArenaOptions options;
  options.most_own_bytes = kMib;
  options.overflow_dir = memory_;
  auto refused = Store(options).Acquire(Me(), 1000, Ranges(2 * kMib));
  EXPECT_CODE(Code::kResourceExhausted, refused);
  EXPECT_NE(refused.error().message.find("is in memory too"), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(EntriesOf(memory_).empty());
  // A full disk: nothing stays there.
  options.overflow_dir = disk_ + "/full";
  refused = Store(options).Acquire(Me(), 1000, Ranges(1ull << 43));
  EXPECT_CODE(Code::kResourceExhausted, refused);
  EXPECT_NE(refused.error().message.find("of disk are needed"), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(EntriesOf(options.overflow_dir).empty());
}

TEST_F(ArenaTest, FilesOfAnEarlierBootAreSwept) {
  ArenaOptions options;
  options.most_own_bytes = kMib;
  options.overflow_dir = disk_ + "/store";
  std::string path;
  {
    ArenaStore store = Store(options);
    auto arena = store.Acquire({{{me_.pid}, 1}, {"GPU-a"}}, 1000, Ranges(2 * kMib));
    ASSERT_TRUE(arena) << arena.error().ToString();
    path = arena->path();
  }
  auto record = DecodeArenaRecord(*ReadFile(RecordPath(path)));
  ASSERT_TRUE(record) << record.error().ToString();
  record->boot_id = "another boot";
  ASSERT_TRUE(WriteFileDurably(RecordPath(path), Encode(*record)));
  auto acquire = [&] {
    ASSERT_TRUE(RemoveFile(paths_.run + "/arena-spill"));
    ArenaStore store = Store(options);
    auto arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
    ASSERT_TRUE(arena) << arena.error().ToString();
    ASSERT_FALSE(arena->in_memory());
  };
  // A file that was made since this machine has started belongs to another machine of that name.
  acquire();
  EXPECT_TRUE(PathExists(path));
  std::filesystem::last_write_time(
      path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 * 365 * 20));
  acquire();
  EXPECT_FALSE(PathExists(path));
}

TEST_F(ArenaTest, ListReserveAndFree) {
  ArenaStore store = Store();
  ASSERT_TRUE(store.Reserve(4 * kMib));
  ASSERT_TRUE(store.Reserve(2 * kMib));
  auto arena = store.Acquire(Me(), ::geteuid(), Ranges(4 * kMib));
  ASSERT_TRUE(arena);
  auto list = store.List();
  ASSERT_EQ(list->size(), 2u) << "the reserved one was taken";
  int in_use = 0;
  for (const ArenaInfo& info : *list) in_use += info.in_use;
  EXPECT_EQ(in_use, 1);
  EXPECT_EQ(*store.FreeUnused(/*keep_of_running=*/false), 2 * kMib);
  EXPECT_EQ(Used(), 4u);
  EXPECT_TRUE(store.Remove(std::move(*arena)));
  EXPECT_TRUE(std::filesystem::is_empty(memory_));
}

TEST_F(ArenaTest, ArenasOfEndedProcessesAreSwept) {
  ArenaStore store = Store();
  auto child = Subprocess::Spawn({.argv = {"/bin/sleep", "1000"}});
  ASSERT_TRUE(child);
  const ArenaKey theirs{process::ReadStat({child->pid()})->id, {kGpu}};
  const ArenaKey mine = Me();
  for (const ArenaKey& key : {theirs, mine}) {
    auto arena = store.Acquire(key, 1000, Ranges(2 * kMib));
    ASSERT_TRUE(store.Complete(*arena));
    // The writer of a record was killed or is still writing.
    std::string half = arena->path();
    half.replace(half.rfind(".data"), std::string::npos, ".record.a1b2c3");
    ASSERT_TRUE(WriteFileDurably(half, "half"));
  }
  auto halves = [&] {
    return std::count_if(std::filesystem::directory_iterator(memory_), {}, [](const auto& file) {
      return file.path().string().ends_with(".record.a1b2c3");
    });
  };
  EXPECT_EQ(*store.Sweep(), 0u);
  EXPECT_EQ(halves(), 2);
  child->Kill(SIGKILL);
  ASSERT_TRUE(child->Wait());
  EXPECT_EQ(*store.Sweep(), 2 * kMib);
  EXPECT_EQ(halves(), 1);
  EXPECT_CODE(Code::kNotFound, store.Find(theirs));
  EXPECT_TRUE(store.Find(mine)->record().complete);

  // A record from another pid namespace: whether its process is alive cannot be checked.
  auto arena = store.Find(mine);
  ArenaRecord record = arena->record();
  const std::string path = arena->path();
  { auto closed = std::move(*arena); }
  ArenaRecord ended = record;
  ended.key = theirs;
  ended.pid_namespace += 1;
  const std::string foreign = std::filesystem::path(path).parent_path().string() + "/" +
                              std::to_string(theirs.process.pid.value) + "-" +
                              std::to_string(theirs.process.start_time) + "-" + kGpu;
  ASSERT_TRUE(WriteFileDurably(foreign + ".data", std::string(4096, 'x')));
  ASSERT_TRUE(WriteFileDurably(foreign + ".record", Encode(ended)));
  EXPECT_EQ(*store.Sweep(), 0u);
  EXPECT_TRUE(PathExists(foreign + ".data"));
  ended.pid_namespace -= 1;
  ASSERT_TRUE(WriteFileDurably(foreign + ".record", Encode(ended)));
  EXPECT_EQ(*store.Sweep(), 4096u);

  // A record from another boot: its pid and start time are meaningless, even if they are the same.
  record.boot_id = "another";
  ASSERT_TRUE(WriteFileDurably(path.substr(0, path.size() - 5) + ".record", Encode(record)));
  EXPECT_CODE(Code::kNotFound, store.Find(mine));
  EXPECT_EQ(*store.Sweep(), 2 * kMib);
}

TEST_F(ArenaTest, ADamagedRecordIsNeverTakenForData) {
  ArenaStore store = Store();
  std::string path;
  {
    auto arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
    ASSERT_TRUE(store.Complete(*arena));
    path = arena->path().substr(0, arena->path().size() - 5) + ".record";
  }
  const std::string good = *ReadFile(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    {
      auto fd = Open(path, O_WRONLY | O_TRUNC);
      ASSERT_TRUE(WriteAll(fd->get(), bad));
    }
    EXPECT_CODE(Code::kDataLoss, store.Find(Me()));
  }
  auto list = store.List();
  ASSERT_EQ(list->size(), 1u);
  EXPECT_FALSE((*list)[0].record);
  EXPECT_NE((*list)[0].damage, "");
  EXPECT_EQ(*store.Sweep(), 0u) << "the process lives";
  auto arena = store.Acquire(Me(), 1000, Ranges(2 * kMib));
  EXPECT_TRUE(arena) << "a new suspend begins anew";
}

TEST_F(ArenaTest, StrangePlacesAndNamesAreRefused) {
  ArenaOptions disk;
  disk.place = disk_;
  EXPECT_CODE(Code::kUnimplemented, ArenaStore::Open(paths_, disk));
  ASSERT_EQ(::symlink(memory_.c_str(), (disk_ + "/link").c_str()), 0);
  ArenaOptions link;
  link.place = disk_ + "/link";
  EXPECT_FALSE(ArenaStore::Open(paths_, link));
  ArenaStore store = Store();
  for (const char* name : {"", "../x", "a/b", "."}) {
    EXPECT_CODE(Code::kInvalidArgument, store.Acquire({me_, {name}}, 0, Ranges(kMib)));
  }
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(memory_.c_str(), 12345, 12345), 0);
    ArenaOptions foreign;
    foreign.place = memory_;
    EXPECT_CODE(Code::kPermissionDenied, ArenaStore::Open(paths_, foreign));
    ASSERT_EQ(::chown(memory_.c_str(), 0, 0), 0);
  }
}

TEST_F(ArenaTest, OwnMountHasHugePagesWhereTheKernelCan) {
  ArenaOptions options;
  auto store = ArenaStore::Open(paths_, options);
  ASSERT_TRUE(store) << store.error().ToString();
  if (store->places()[0].kind != ArenaPlace::Kind::kOwnMount) {
    GTEST_SKIP() << "no right to mount a tmpfs";
  }
  auto again = ArenaStore::Open(paths_, options);
  ASSERT_TRUE(again);
  auto arena = again->Acquire(Me(), 0, Ranges(4 * kMib));
  ASSERT_TRUE(arena) << arena.error().ToString();
  EXPECT_TRUE(arena->path().starts_with(paths_.run + "/arena/")) << arena->path();
  auto mounts = *ReadFile("/proc/self/mountinfo");
  const size_t at = mounts.find(" " + paths_.run + "/arena ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(mounts.find(" " + paths_.run + "/arena ", at + 1), std::string::npos) << "once";
  const std::string line = mounts.substr(at, mounts.find('\n', at) - at);
  if (PathExists("/sys/kernel/mm/transparent_hugepage/shmem_enabled")) {
    EXPECT_NE(line.find("huge=always"), std::string::npos) << line;
  }
}

TEST_F(ArenaTest, WithoutTheRightToMountThereIsSharedMemory) {
  ArenaOptions options;
  options.may_mount = false;
  auto store = ArenaStore::Open(paths_, options);
  ASSERT_TRUE(store) << store.error().ToString();
  EXPECT_EQ(store->places()[0].kind, ArenaPlace::Kind::kSharedMemory);
  EXPECT_EQ(store->places()[0].path, "/dev/shm/stasis-" + std::to_string(::geteuid()));
  ::rmdir(store->places()[0].path.c_str());  // fails if it is in use
}

TEST(DataChecksum, DependsOnEveryByteAndOnTheLength) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), 130 * kMib), 0);
  const auto zero = *DataChecksum(fd.get(), 130 * kMib);
  EXPECT_NE(zero, *DataChecksum(fd.get(), 129 * kMib));
  for (uint64_t at : {uint64_t{0}, 64 * kMib - 1, 64 * kMib, 130 * kMib - 1}) {
    ASSERT_EQ(::pwrite(fd.get(), "x", 1, static_cast<off_t>(at)), 1);
    EXPECT_NE(zero, *DataChecksum(fd.get(), 130 * kMib));
    ASSERT_EQ(::pwrite(fd.get(), "\0", 1, static_cast<off_t>(at)), 1);
  }
  EXPECT_EQ(zero, *DataChecksum(fd.get(), 130 * kMib));
}

}  // namespace
}  // namespace stasis::dataplane
