// gc frees exactly the units that no image needs, even while images are deleted and dumped, and
// even when it is killed.
#include "store/gc.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>

#include "store/shared_units_testing.h"

namespace stasis::store {
namespace {

using namespace testing;  // NOLINT

TEST_F(SharedUnitsTest, GcFreesExactlyWhatNoImageRefersTo) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  for (uint32_t i = 10; i < 30; ++i) Change(changed, i, i);
  Dump("b", changed);
  EXPECT_EQ(Gc().freed_units, 0u);
  uint64_t before = Occupied();
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  EXPECT_EQ(Occupied(), before) << "the pack has another name";
  auto report = Gc();
  EXPECT_EQ(report.freed_units, 20u);
  // A file with many holes may need one more block for the metadata of the file system.
  EXPECT_NEAR(static_cast<double>(report.freed_bytes), 20.0 * kBlock, 2.0 * kPackAlign);
  EXPECT_EQ(Occupied(), before - report.freed_bytes);
  EXPECT_TRUE(report.skipped.empty());
  ExpectIntact("b", changed);
  EXPECT_EQ(Gc().freed_units, 0u);
  // Dump the old contents again: holes must not be mistaken for blocks.
  EXPECT_EQ(Dump("c", memory), 20u * kBlock);
  ExpectIntact("c", memory);
  // gc keeps the modification time of the pack, so the next dump need not check the other units.
  auto options = Options();
  options.always_check_bytes = 0;
  EXPECT_EQ(Dump("d", changed, options), 0u);
  for (const char* name : {"b", "c", "d"}) ASSERT_TRUE(DeleteImage(store_ / name));
  EXPECT_EQ(Occupied(), 0u);
}

// The cost of gc grows with the number of references in the manifests, but not with this number
// times the number of packs.
TEST_F(SharedUnitsTest, GcLooksAtEachReferenceOnce) {
  std::string memory = Memory(1);
  constexpr uint32_t kImages = 4;
  for (uint32_t i = 0; i < kImages; ++i) {
    Change(memory, i, i);
    Dump(std::to_string(i), memory);
  }
  const auto report = Gc();
  EXPECT_EQ(report.packs, uint64_t{kImages});
  uint64_t runs = 0;
  for (uint32_t i = 0; i < kImages; ++i) {
    runs += (*ImageReader::Open(store_ / std::to_string(i)))->manifest().ranges[0].runs.size();
  }
  EXPECT_EQ(report.references, runs);
}

// A pack may list the name of a unit that is a hole in it, while the image refers to the same unit
// in another pack.
TEST_F(SharedUnitsTest, AUnitIsReadFromThePackThatTheImageNames) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string without = memory;
  Change(without, 0, 1);
  Dump("b", without);
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  ASSERT_EQ(Gc().freed_units, 1u);
  Dump("c", memory);  // block 0 is in c's own pack, and a hole in the other
  ExpectIntact("c", memory);
  ASSERT_TRUE(DeleteImage(store_ / "b"));
  Gc();
  ExpectIntact("c", memory);
  // The order of the packs must not matter.
  Dump("b", without);
  Change(memory, 1, 2);
  Dump("d", memory);
  std::vector<Pack> packs = Packs("d");
  ASSERT_EQ(packs.size(), 3u);
  EXPECT_GT(packs[1].used_units, packs[2].used_units);
  ExpectIntact("d", memory);
}

TEST_F(SharedUnitsTest, GcLeavesPacksAloneWhoseNeedsAreUnknown) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  Change(changed, 10, 1);
  Dump("b", changed);
  Dump("c", changed);
  std::string file = store_ / "b/" + Packs("a")[0].path();

  // Copy the image by hard links to a folder outside of the store.
  TempStore elsewhere;
  ASSERT_EQ(::system(("cp -al " + store_ / "a" + " " + elsewhere / "a").c_str()), 0);
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  auto report = Gc();
  EXPECT_EQ(report.freed_units, 0u);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_NE(report.skipped[0].why.find("1 of its 3 hard links"), std::string::npos)
      << report.skipped[0].why;
  ASSERT_TRUE(DeleteImage(elsewhere / "a"));

  // A dump holds the lock on the pack.
  auto locked = Open(file, O_RDONLY);
  ASSERT_EQ(::flock(locked->get(), LOCK_SH), 0);
  report = Gc();
  EXPECT_EQ(report.freed_units, 0u);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_TRUE(report.skipped[0].busy);
  locked->Reset();

  // The manifest of an image cannot be read.
  std::string manifest = *ReadFile(store_ / "c/manifest.pb");
  WriteFile(store_ / "c/manifest.pb", "x");
  report = Gc();
  EXPECT_EQ(report.freed_units, 0u);
  EXPECT_FALSE(report.skipped.empty());
  WriteFile(store_ / "c/manifest.pb", manifest);
  EXPECT_EQ(Gc().freed_units, 1u);
  ExpectIntact("b", changed);
  ExpectIntact("c", changed);
}

// gc runs while a dump has linked packs but is not committed.
TEST_F(SharedUnitsTest, GcBesideADumpTakesNothingFromIt) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  Change(changed, 10, 1);
  Dump("b", changed);
  Manifest manifest;
  auto writer = Write("c", memory, manifest, Options());
  ASSERT_EQ(last_.stored_bytes, 0u);
  ASSERT_TRUE(DeleteImage(store_ / "a"));  // the only one that has block 10
  EXPECT_EQ(Gc().freed_units, 0u);
  CommitOptions options;
  options.before_step = [&](std::string_view) -> Status {
    EXPECT_EQ(Gc().freed_units, 0u);
    return {};
  };
  ASSERT_TRUE(writer->Commit(manifest, options));
  writer.reset();
  EXPECT_EQ(Gc().freed_units, 0u);
  ExpectIntact("b", changed);
  ExpectIntact("c", memory);
}

// If gc has locked the pack before the dump tries to link it, the dump writes its own pack.
TEST_F(SharedUnitsTest, ADumpBesideAGcDoesNotWaitForIt) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  Change(changed, 10, 1);
  Dump("b", changed);
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  GcOptions options;
  bool dumped = false;
  options.before_step = [&](std::string_view step) -> Status {
    if (!step.starts_with("free ")) return {};
    EXPECT_EQ(Dump("c", changed), (kBlocks - 1) * kBlock) << "but for its own pack of one block";
    dumped = true;
    return {};
  };
  auto report = CollectGarbage(store_.path(), options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_TRUE(dumped);
  EXPECT_EQ(report->freed_units, 1u);
  ExpectIntact("b", changed);
  ExpectIntact("c", changed);
}

// An image is deleted and another one appears after gc has read the images and before it locks the
// pack.
TEST_F(SharedUnitsTest, GcChecksAgainUnderTheLock) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  Change(changed, 10, 1);
  Dump("b", changed);
  Dump("c", changed);
  Manifest manifest;
  auto writer = Write("d", memory, manifest, Options());  // refers to block 10 of a's pack
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  GcOptions options;
  bool locked = false;
  options.before_step = [&](std::string_view step) -> Status {
    if (!step.starts_with("lock ") || locked) return {};
    locked = true;
    // The pack has as many hard links as before, but one of them belongs to the new image.
    EXPECT_TRUE(DeleteImage(store_ / "c"));
    EXPECT_TRUE(writer->Commit(manifest, {}));
    return {};
  };
  auto report = CollectGarbage(store_.path(), options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_TRUE(locked);
  ExpectIntact("b", changed);
  ExpectIntact("d", memory);
}

// Runs `work` in a child that is killed before its n-th step, for every n until all steps have run.
void KilledAtEachStep(const std::function<void(std::function<Status(std::string_view)>)>& work,
                      const std::function<void()>& check) {
  for (int n = 0;; ++n) {
    ASSERT_LT(n, 100);
    pid_t child = ::fork();
    if (child == 0) {
      int left = n;
      work([&](std::string_view) -> Status {
        if (left-- == 0) ::kill(::getpid(), SIGKILL);
        return {};
      });
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    check();
    if (WIFEXITED(status)) {
      EXPECT_GT(n, 1);
      return;
    }
  }
}

TEST_F(SharedUnitsTest, KilledAtAnyStepGcHarmsNothingAndTheNextOneFinishes) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::map<std::string, std::string> images;
  for (uint32_t i = 1; i < 6; ++i) {
    Change(memory, i, i);
    images[std::to_string(i)] = memory;
    Dump(std::to_string(i), memory);
  }
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  for (const char* name : {"2", "3"}) {
    ASSERT_TRUE(DeleteImage(store_ / name));
    images.erase(name);
  }
  KilledAtEachStep([&](auto before_step) { (void)CollectGarbage(store_.path(), {before_step}); },
                   [&] {
                     for (const auto& [name, content] : images) ExpectIntact(name, content);
                   });
  uint64_t needed = 0;
  std::map<std::string, uint64_t> blocks;
  for (const auto& [name, content] : images) {
    for (size_t at = 0; at < content.size(); at += kBlock)
      blocks[content.substr(at, kBlock)] = kBlock;
  }
  for (const auto& [content, bytes] : blocks) needed += bytes;
  uint64_t packs = Gc().packs;
  EXPECT_EQ(Gc().freed_units, 0u);
  uint64_t occupied = Occupied();
  EXPECT_GE(occupied, needed);
  EXPECT_LE(occupied, needed + packs * 8 * kPackAlign) << "headers, indexes, maps of holes";
}

TEST_F(SharedUnitsTest, KilledAtAnyStepADeleteIsDoneOrNot) {
  std::string memory = Memory(1);
  Dump("a", memory);
  Dump("b", memory);
  KilledAtEachStep([&](auto before_step) { (void)DeleteImage(store_ / "a", before_step); },
                   [&] {
                     ExpectIntact("b", memory);
                     if (PathExists(store_ / "a")) ExpectIntact("a", memory);
                     ASSERT_TRUE(SweepPartials(store_.path()));
                     if (!PathExists(store_ / "a")) Dump("a", memory);
                   });
}

TEST_F(SharedUnitsTest, HundredDumpsWithDeletesAndGcsEachSurvivorIsWhole) {
  std::mt19937 random(1);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  std::string memory = Memory(1);
  std::map<std::string, std::string> images;
  for (uint32_t i = 0; i < 100; ++i) {
    for (size_t n = below(8); n > 0; --n)
      Change(memory, below(kBlocks), i * 100 + static_cast<uint32_t>(n));
    if (below(10) == 0) memory.replace(below(kBlocks) * kBlock, kBlock, kBlock, '\0');
    if (below(15) == 0 && !images.empty())
      memory = std::next(images.begin(), static_cast<long>(below(images.size())))->second;
    auto options = Options();
    options.compression = static_cast<Compression>(below(4));
    options.job_id = below(4) == 0 ? "other" : "llama";
    std::string name = "image-" + std::to_string(i);
    Dump(name, memory, options);
    images[name] = memory;
    while (images.size() > 12 || (images.size() > 2 && below(4) == 0)) {
      auto victim = std::next(images.begin(), static_cast<long>(below(images.size())));
      ASSERT_TRUE(DeleteImage(store_ / victim->first));
      images.erase(victim);
    }
    if (below(3) == 0) Gc();
    if (i % 10 != 9) continue;
    for (const auto& [survivor, content] : images) ExpectIntact(survivor, content);
  }
  Gc();
  for (const auto& [survivor, content] : images) ExpectIntact(survivor, content);
  for (const auto& [survivor, content] : images) ASSERT_TRUE(DeleteImage(store_ / survivor));
  EXPECT_TRUE(ListDir(store_.path())->empty());
}

}  // namespace
}  // namespace stasis::store
