// Blocks that several images share: written once, linked, verified, freed, through deletes, gc,
// kills and damage. On the real file system, with synthetic GPU memory in small blocks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>

#include "image/block_reader.h"
#include "image/block_writer.h"
#include "image/gc.h"
#include "image/image_testing.h"
#include "image/reader.h"
#include "image/store_folder.h"

namespace stasis::image {
namespace {

using testing::MustBegin;
using testing::Noise;
using testing::TempStore;

constexpr uint32_t kBlock = 8192;
constexpr size_t kBlocks = 100;

std::vector<std::string> Names(const std::string& folder) { return *ListDir(folder); }

BlockKey Key(uint8_t seed = 0) {
  BlockSecret secret{};
  secret[0] = seed;
  return BlockKey(secret);
}

// Memory whose blocks are all different from each other and from any other seed's.
std::string Memory(uint32_t seed, size_t blocks = kBlocks) {
  std::string memory;
  for (size_t i = 0; i < blocks; ++i) {
    memory += Noise(kBlock, seed * 7919 + static_cast<uint32_t>(i) * 104729);
  }
  return memory;
}

void Change(std::string& memory, size_t block, uint32_t seed) {
  memory.replace(block * kBlock, kBlock, Noise(kBlock, 0x5eed0000 + seed));
}

class SharedBlocksTest : public ::testing::Test {
 protected:
  BlockWriterOptions Options() const {
    BlockWriterOptions options;
    options.job_id = "llama";
    options.uid = 1000;
    return options;
  }

  // An image of this memory, not yet committed.
  std::unique_ptr<ImageWriter> Write(const std::string& name, const std::string& memory,
                                     Manifest& manifest, const BlockWriterOptions& options,
                                     const BlockKey& key = Key()) {
    auto writer = MustBegin(store_.path(), name);
    auto blocks = BlockWriter::Begin(*writer, key, options);
    EXPECT_TRUE(blocks);
    auto added = blocks->Add({0, kAddress, memory.size(), kBlock, {}, 4711}, memory);
    EXPECT_TRUE(added) << added.error().ToString();
    auto written = blocks->Finish();
    EXPECT_TRUE(written) << written.error().ToString();
    last_ = *written;
    manifest = testing::FullManifest();
    manifest.job.uid = options.uid;
    manifest.job.id = options.job_id;
    written->DescribeIn(manifest);
    return writer;
  }
  // Returns what was stored for it.
  uint64_t Dump(const std::string& name, const std::string& memory,
                const BlockWriterOptions& options, const BlockKey& key = Key()) {
    Manifest manifest;
    auto writer = Write(name, memory, manifest, options, key);
    auto status = writer->Commit(manifest, {});
    EXPECT_TRUE(status) << status.error().ToString();
    return last_.stored_bytes;
  }
  uint64_t Dump(const std::string& name, const std::string& memory) {
    return Dump(name, memory, Options());
  }

  // What a verification finds, one line each.
  std::string Findings(const std::string& name) const {
    auto reader = ImageReader::Open(store_ / name);
    if (!reader) return reader.error().ToString();
    auto report = (*reader)->Verify(VerifyLevel::kFull);
    if (!report) return report.error().ToString();
    std::string lines;
    for (const Finding& finding : report->findings) {
      lines += finding.path + " " + finding.message + "\n";
    }
    return lines;
  }
  std::string Restored(const std::string& name) const {
    auto reader = ImageReader::Open(store_ / name);
    if (!reader) return reader.error().ToString();
    auto blocks = BlockReader::Open(**reader);
    if (!blocks) return blocks.error().ToString();
    const DeviceRange& range = (*reader)->manifest().ranges[0];
    std::string memory(range.size_bytes, 'x');
    for (size_t i = 0; i < range.blocks.size(); ++i) {
      auto status = blocks->Read(range, i, memory.data() + i * range.block_bytes);
      if (!status) return status.error().ToString();
    }
    return memory;
  }
  void ExpectWhole(const std::string& name, const std::string& memory) const {
    EXPECT_EQ(Findings(name), "") << name;
    EXPECT_TRUE(Restored(name) == memory) << name;
  }
  std::vector<Pack> Packs(const std::string& name) const {
    return (*ImageReader::Open(store_ / name))->manifest().packs;
  }
  // Of all packs in the store, each file once.
  uint64_t Occupied() const {
    std::map<ino_t, uint64_t> files;
    for (const std::string& name : Names(store_.path())) {
      for (const std::string& pack : Names(store_ / name + "/gpu")) {
        struct stat st;
        EXPECT_EQ(::stat((store_ / name + "/gpu/" + pack).c_str(), &st), 0);
        files[st.st_ino] = static_cast<uint64_t>(st.st_blocks) * 512;
      }
    }
    uint64_t total = 0;
    for (const auto& [inode, bytes] : files) total += bytes;
    return total;
  }
  void Flip(const std::string& path, uint64_t offset) const {
    auto fd = Open(path, O_RDWR);
    char byte = 0;
    ASSERT_EQ(::pread(fd->get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= 4;
    ASSERT_EQ(::pwrite(fd->get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }
  GcReport Gc() const {
    auto report = CollectGarbage(store_.path());
    EXPECT_TRUE(report) << report.error().ToString();
    return report ? *report : GcReport{};
  }

  static constexpr uint64_t kAddress = 0x7f0000000000;
  TempStore store_;
  WrittenBlocks last_;
};

TEST_F(SharedBlocksTest, ASecondImageStoresWhatChanged) {
  std::string memory = Memory(1);
  EXPECT_EQ(Dump("a", memory), kBlocks * kBlock);
  std::string changed = memory;
  Change(changed, 17, 1);
  EXPECT_EQ(Dump("b", changed), kBlock);
  EXPECT_EQ(last_.shared_bytes, (kBlocks - 1) * kBlock);
  ASSERT_EQ(Packs("b").size(), 2u);
  EXPECT_FALSE(Packs("b")[0].linked);
  EXPECT_TRUE(Packs("b")[1].linked);
  EXPECT_EQ(Packs("b")[1].used_blocks, kBlocks - 1);
  EXPECT_EQ(Packs("b")[1].id, Packs("a")[0].id);
  auto reader = ImageReader::Open(store_ / "b");
  EXPECT_EQ((*reader)->manifest().TotalBytes(), kBlocks * kBlock);
  EXPECT_EQ((*reader)->manifest().AddedBytes(), kBlock);
  reader->reset();
  ExpectWhole("a", memory);
  ExpectWhole("b", changed);
  // The image whose pack it was goes; the other is whole by itself.
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  ExpectWhole("b", changed);
}

TEST_F(SharedBlocksTest, ZerosAndRepetitionsAreStoredOnceOrNever) {
  std::string memory =
      std::string(kBlock * 50, '\0') + Noise(kBlock, 1) + Noise(kBlock, 1) + Noise(100, 2);
  EXPECT_EQ(Dump("a", memory), kBlock + 100u);
  EXPECT_EQ(last_.zero_bytes, kBlock * 50u);
  EXPECT_EQ(last_.repeated_bytes, kBlock);
  EXPECT_LT(Occupied(), 8 * kPackAlign);
  ExpectWhole("a", memory);
  std::string nothing(kBlock * 3, '\0');
  EXPECT_EQ(Dump("b", nothing), 0u);
  EXPECT_TRUE(Packs("b").empty());
  ExpectWhole("b", nothing);
}

TEST_F(SharedBlocksTest, OnlyImagesOfTheSameUserAndKeyShare) {
  std::string memory = Memory(1);
  Dump("a", memory);
  auto other = Options();
  other.job_id = "another";
  EXPECT_EQ(Dump("same-user", memory, other), 0u) << "another job with the same weights";
  other.uid = 1001;
  EXPECT_EQ(Dump("other-user", memory, other), kBlocks * kBlock);
  EXPECT_EQ(Dump("other-key", memory, Options(), Key(1)), kBlocks * kBlock);
  auto full = Options();
  full.share = false;
  EXPECT_EQ(Dump("full", memory, full), kBlocks * kBlock);
  if (::geteuid() == 0) {
    for (const char* name : {"a", "same-user", "full"}) {
      ASSERT_EQ(::chown((store_ / name).c_str(), 12345, 12345), 0);
    }
    EXPECT_EQ(Dump("other-owner", memory), kBlocks * kBlock) << "their files are not ours";
  }
}

// A copy has packs of the same id in other files.
TEST_F(SharedBlocksTest, AFolderThatIsCopiedIsACompleteImage) {
  std::string memory = Memory(1);
  Dump("a", memory);
  Change(memory, 3, 1);
  Dump("b", memory);
  ASSERT_EQ(::system(("cp -a " + store_ / "b" + " " + store_ / "c").c_str()), 0);
  ASSERT_EQ(::system(("mkdir " + store_ / "d" + " && tar -C " + store_ / "b" + " -c . | tar -C " +
                      store_ / "d" + " -x")
                         .c_str()),
            0);
  ASSERT_TRUE(DeleteImage(store_ / "a") && DeleteImage(store_ / "b"));
  EXPECT_GT(Gc().freed_blocks, 0u);
  ExpectWhole("c", memory);
  ExpectWhole("d", memory);
  EXPECT_EQ(Dump("e", memory), 0u);
  ExpectWhole("e", memory);
}

TEST_F(SharedBlocksTest, AFlippedBitIsFoundInTheImagesThatReferToItAndOnlyThose) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  Change(changed, 40, 1);
  Dump("b", changed);
  Change(changed, 41, 2);
  Dump("c", changed);
  Dump("stranger", Memory(9));

  Pack pack = Packs("a")[0];
  auto reader = (*ImageReader::Open(store_ / "a"))->OpenPack(pack);
  auto entry_of = [&](size_t block) {
    return reader->Find(Key().Name(memory.substr(block * kBlock, kBlock)));
  };
  std::string file = store_ / "a/" + pack.path();
  struct Row {
    uint64_t offset;
    std::string images;
  };
  const Row rows[] = {{entry_of(40)->offset + 5, "a"},
                      {entry_of(41)->offset + 5, "a b"},
                      {entry_of(42)->offset + kBlock - 1, "a b c"},
                      {30, "a b c"},  // the header
                      {pack.size_bytes - 100, "a b c"},
                      {pack.size_bytes - 1, "a b c"}};
  for (const Row& row : rows) {
    Flip(file, row.offset);
    std::string found;
    for (const char* name : {"a", "b", "c", "stranger"}) {
      std::string findings = Findings(name);
      if (findings.empty()) continue;
      found += (found.empty() ? "" : " ") + std::string(name);
      EXPECT_EQ(findings.rfind(pack.path() + " ", 0), 0u) << findings;
    }
    EXPECT_EQ(found, row.images) << "byte " << row.offset;
    Flip(file, row.offset);
  }
  EXPECT_EQ(Findings("c"), "");
}

// A damaged block of an earlier image is not relied on, and the user is told.
TEST_F(SharedBlocksTest, WhatIsDamagedIsWrittenAnew) {
  std::string memory = Memory(1);
  Dump("a", memory);
  Pack pack = Packs("a")[0];
  Flip(store_ / "a/" + pack.path(), 4096 + 100);
  EXPECT_EQ(Dump("b", memory), kBlocks * kBlock);
  ASSERT_EQ(last_.notes.size(), 1u);
  EXPECT_NE(last_.notes[0].find("image a is damaged"), std::string::npos) << last_.notes[0];
  ExpectWhole("b", memory);
  EXPECT_NE(Findings("a"), "");
  // The next one takes the good copy, of the newer image.
  EXPECT_EQ(Dump("c", memory), 0u);
  ExpectWhole("c", memory);
}

TEST_F(SharedBlocksTest, APackIsReadWhenItsLastCheckIsLongAgoOrItWasWrittenTo) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string file = store_ / "a/" + Packs("a")[0].path();
  auto options = Options();
  options.always_check_bytes = 0;
  auto set_time = [&](int64_t seconds_from_now) {
    timespec times[2] = {{0, UTIME_OMIT}, {::time(nullptr) + seconds_from_now, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  };
  Flip(file, 4096 + 100);
  set_time(-100);
  EXPECT_EQ(Dump("trusting", memory, options), 0u) << "checked lately, and looks untouched";
  EXPECT_EQ(Packs("trusting")[0].checked_unix_ns, Packs("a")[0].checked_unix_ns);
  ASSERT_TRUE(DeleteImage(store_ / "trusting"));
  set_time(100);
  EXPECT_EQ(Dump("touched", memory, options), kBlocks * kBlock);
  ASSERT_TRUE(DeleteImage(store_ / "touched"));
  set_time(-100);
  options.trust_ns = 0;
  EXPECT_EQ(Dump("distrusting", memory, options), kBlocks * kBlock);
  ASSERT_TRUE(DeleteImage(store_ / "distrusting"));
  Flip(file, 4096 + 100);
  set_time(-100);
  EXPECT_EQ(Dump("checked", memory, options), 0u);
  EXPECT_GT(Packs("checked")[0].checked_unix_ns, Packs("a")[0].checked_unix_ns);
}

TEST_F(SharedBlocksTest, APackOfWhichLittleIsNeededIsNotLinked) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string other = Memory(2);
  other.replace(0, 5 * kBlock, memory, 0, 5 * kBlock);
  EXPECT_EQ(Dump("b", other), kBlocks * kBlock);
  EXPECT_EQ(Packs("b").size(), 1u);
  std::string more = Memory(3);
  more.replace(0, 20 * kBlock, memory, 50 * kBlock, 20 * kBlock);
  EXPECT_EQ(Dump("c", more), (kBlocks - 20) * kBlock);
}

TEST_F(SharedBlocksTest, AnImageLinksToABoundedNumberOfPacks) {
  std::string memory = Memory(1, 300);
  Dump("0", memory);
  auto options = Options();
  options.max_linked_packs = 12;
  size_t most = 0;
  for (uint32_t i = 1; i <= 20; ++i) {
    Change(memory, i, i);
    uint64_t stored = Dump(std::to_string(i), memory, options);
    EXPECT_LE(stored, 4 * kBlock) << i;
    size_t linked = 0;
    for (const Pack& pack : Packs(std::to_string(i))) linked += pack.linked ? 1 : 0;
    most = std::max(most, linked);
    if (i == 1) continue;
    ASSERT_TRUE(DeleteImage(store_ / std::to_string(i - 1)));
  }
  EXPECT_EQ(most, options.max_linked_packs);
  ExpectWhole("20", memory);
}

TEST_F(SharedBlocksTest, GcFreesExactlyWhatNoImageRefersTo) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  for (uint32_t i = 10; i < 30; ++i) Change(changed, i, i);
  Dump("b", changed);
  EXPECT_EQ(Gc().freed_blocks, 0u);
  uint64_t before = Occupied();
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  EXPECT_EQ(Occupied(), before) << "the pack has another name";
  auto report = Gc();
  EXPECT_EQ(report.freed_blocks, 20u);
  // A file with many holes may need a block more, in which the file system says where they are.
  EXPECT_NEAR(static_cast<double>(report.freed_bytes), 20.0 * kBlock, 2.0 * kPackAlign);
  EXPECT_EQ(Occupied(), before - report.freed_bytes);
  EXPECT_TRUE(report.skipped.empty());
  ExpectWhole("b", changed);
  EXPECT_EQ(Gc().freed_blocks, 0u);
  // The old contents again: the holes are not mistaken for blocks.
  EXPECT_EQ(Dump("c", memory), 20u * kBlock);
  ExpectWhole("c", memory);
  // A dump after a gc need not read what the gc did not write.
  auto options = Options();
  options.always_check_bytes = 0;
  EXPECT_EQ(Dump("d", changed, options), 0u);
  for (const char* name : {"b", "c", "d"}) ASSERT_TRUE(DeleteImage(store_ / name));
  EXPECT_EQ(Occupied(), 0u);
}

// The names of blocks that a pack has are not enough: one of them may be a hole there, and the
// image has the block in another pack.
TEST_F(SharedBlocksTest, ABlockIsReadFromThePackThatTheImageNames) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string without = memory;
  Change(without, 0, 1);
  Dump("b", without);
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  ASSERT_EQ(Gc().freed_blocks, 1u);
  Dump("c", memory);  // block 0 is in c's own pack, and a hole in the other
  ExpectWhole("c", memory);
  ASSERT_TRUE(DeleteImage(store_ / "b"));
  Gc();
  ExpectWhole("c", memory);
  // Also where the pack with the hole comes first.
  Dump("b", without);
  Change(memory, 1, 2);
  Dump("d", memory);
  std::vector<Pack> packs = Packs("d");
  ASSERT_EQ(packs.size(), 3u);
  EXPECT_GT(packs[1].used_blocks, packs[2].used_blocks);
  ExpectWhole("d", memory);
}

TEST_F(SharedBlocksTest, GcLeavesAloneWhatItCannotKnow) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  Change(changed, 10, 1);
  Dump("b", changed);
  Dump("c", changed);
  std::string file = store_ / "b/" + Packs("a")[0].path();

  // A copy by hard links, outside of the store.
  TempStore elsewhere;
  ASSERT_EQ(::system(("cp -al " + store_ / "a" + " " + elsewhere / "a").c_str()), 0);
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  auto report = Gc();
  EXPECT_EQ(report.freed_blocks, 0u);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_NE(report.skipped[0].why.find("1 of its 3 names"), std::string::npos)
      << report.skipped[0].why;
  ASSERT_TRUE(DeleteImage(elsewhere / "a"));

  // A dump that has the pack locked.
  auto locked = Open(file, O_RDONLY);
  ASSERT_EQ(::flock(locked->get(), LOCK_SH), 0);
  report = Gc();
  EXPECT_EQ(report.freed_blocks, 0u);
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_TRUE(report.skipped[0].busy);
  locked->Reset();

  // An image whose manifest cannot be read.
  std::string manifest = *ReadFile(store_ / "c/manifest.pb");
  testing::WriteFile(store_ / "c/manifest.pb", "x");
  report = Gc();
  EXPECT_EQ(report.freed_blocks, 0u);
  EXPECT_FALSE(report.skipped.empty());
  testing::WriteFile(store_ / "c/manifest.pb", manifest);
  EXPECT_EQ(Gc().freed_blocks, 1u);
  ExpectWhole("b", changed);
  ExpectWhole("c", changed);
}

// gc while a dump is between its links and its commit.
TEST_F(SharedBlocksTest, GcBesideADumpTakesNothingFromIt) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  Change(changed, 10, 1);
  Dump("b", changed);
  Manifest manifest;
  auto writer = Write("c", memory, manifest, Options());
  ASSERT_EQ(last_.stored_bytes, 0u);
  ASSERT_TRUE(DeleteImage(store_ / "a"));  // the only one that has block 10
  EXPECT_EQ(Gc().freed_blocks, 0u);
  CommitOptions options;
  options.before_step = [&](std::string_view) -> Status {
    EXPECT_EQ(Gc().freed_blocks, 0u);
    return {};
  };
  ASSERT_TRUE(writer->Commit(manifest, options));
  writer.reset();
  EXPECT_EQ(Gc().freed_blocks, 0u);
  ExpectWhole("b", changed);
  ExpectWhole("c", memory);
}

// The other order: gc holds the pack, so the dump writes its own.
TEST_F(SharedBlocksTest, ADumpBesideAGcDoesNotWaitForIt) {
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
  EXPECT_EQ(report->freed_blocks, 1u);
  ExpectWhole("b", changed);
  ExpectWhole("c", changed);
}

// Between gc's reading of the images and its lock on the pack an image goes, and another comes.
TEST_F(SharedBlocksTest, GcDoesNotActOnWhatItReadBeforeTheLock) {
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
    // As many names as before, and one of them of the new image.
    EXPECT_TRUE(DeleteImage(store_ / "c"));
    EXPECT_TRUE(writer->Commit(manifest, {}));
    return {};
  };
  auto report = CollectGarbage(store_.path(), options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_TRUE(locked);
  ExpectWhole("b", changed);
  ExpectWhole("d", memory);
}

// Runs it in a child that is killed before its n-th step, for every n until it has no more.
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

TEST_F(SharedBlocksTest, KilledAtAnyStepGcHarmsNothingAndTheNextOneFinishes) {
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
                     for (const auto& [name, content] : images) ExpectWhole(name, content);
                   });
  uint64_t needed = 0;
  std::map<std::string, uint64_t> blocks;
  for (const auto& [name, content] : images) {
    for (size_t at = 0; at < content.size(); at += kBlock)
      blocks[content.substr(at, kBlock)] = kBlock;
  }
  for (const auto& [content, bytes] : blocks) needed += bytes;
  uint64_t packs = Gc().packs;
  EXPECT_EQ(Gc().freed_blocks, 0u);
  uint64_t occupied = Occupied();
  EXPECT_GE(occupied, needed);
  EXPECT_LE(occupied, needed + packs * 8 * kPackAlign) << "headers, indexes, maps of holes";
}

TEST_F(SharedBlocksTest, KilledAtAnyStepADeleteIsDoneOrNot) {
  std::string memory = Memory(1);
  Dump("a", memory);
  Dump("b", memory);
  KilledAtEachStep([&](auto before_step) { (void)DeleteImage(store_ / "a", before_step); },
                   [&] {
                     ExpectWhole("b", memory);
                     if (PathExists(store_ / "a")) ExpectWhole("a", memory);
                     ASSERT_TRUE(SweepPartials(store_.path()));
                     if (!PathExists(store_ / "a")) Dump("a", memory);
                   });
}

TEST_F(SharedBlocksTest, HundredDumpsWithDeletesAndGcsEachSurvivorIsWhole) {
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
    for (const auto& [survivor, content] : images) ExpectWhole(survivor, content);
  }
  Gc();
  for (const auto& [survivor, content] : images) ExpectWhole(survivor, content);
  for (const auto& [survivor, content] : images) ASSERT_TRUE(DeleteImage(store_ / survivor));
  EXPECT_TRUE(ListDir(store_.path())->empty());
}

}  // namespace
}  // namespace stasis::image
