// Blocks that several images share: written once, linked, and checked before a new image refers to
// them.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/shared_units_testing.h"

namespace stasis::store {
namespace {

using namespace testing;  // NOLINT

TEST_F(SharedUnitsTest, ASecondImageStoresWhatChanged) {
  std::string memory = Memory(1);
  EXPECT_EQ(Dump("a", memory), kBlocks * kBlock);
  std::string changed = memory;
  Change(changed, 17, 1);
  EXPECT_EQ(Dump("b", changed), kBlock);
  EXPECT_EQ(last_.shared_bytes, (kBlocks - 1) * kBlock);
  ASSERT_EQ(Packs("b").size(), 2u);
  EXPECT_FALSE(Packs("b")[0].linked);
  EXPECT_TRUE(Packs("b")[1].linked);
  EXPECT_EQ(Packs("b")[1].used_units, kBlocks - 1);
  EXPECT_EQ(Packs("b")[1].id, Packs("a")[0].id);
  auto reader = ImageReader::Open(store_ / "b");
  EXPECT_EQ((*reader)->manifest().TotalBytes(), kBlocks * kBlock);
  EXPECT_EQ((*reader)->manifest().AddedBytes(), kBlock);
  reader->reset();
  ExpectIntact("a", memory);
  ExpectIntact("b", changed);
  // The image that wrote the pack is deleted; the other image stays complete.
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  ExpectIntact("b", changed);
}

TEST_F(SharedUnitsTest, ZerosAndRepetitionsAreStoredOnceOrNever) {
  std::string memory =
      std::string(kBlock * 50, '\0') + Noise(kBlock, 1) + Noise(kBlock, 1) + Noise(100, 2);
  EXPECT_EQ(Dump("a", memory), kBlock + 100u);
  EXPECT_EQ(last_.zero_bytes, kBlock * 50u);
  EXPECT_EQ(last_.repeated_bytes, kBlock);
  EXPECT_LT(Occupied(), 8 * kPackAlign);
  ExpectIntact("a", memory);
  std::string nothing(kBlock * 3, '\0');
  EXPECT_EQ(Dump("b", nothing), 0u);
  EXPECT_TRUE(Packs("b").empty());
  ExpectIntact("b", nothing);
}

// The caller may pass hashes. Then zero blocks and blocks that an earlier image has are not read,
// and blocks that are written are hashed again.
TEST_F(SharedUnitsTest, HashesMayBeGivenButNoBlockIsWrittenUnchecked) {
  const std::string memory = Memory(1, 4);
  std::vector<Id128> hashes;
  for (size_t i = 0; i < 4; ++i) {
    hashes.push_back(Key().key().Hash(memory.substr(i * kBlock, kBlock)));
  }
  auto write = [&](const std::string& image, const std::string& data) {
    auto writer = MustBegin(store_.path(), image);
    return WriteBlocks(*writer, Key(),
                       {{{0, kAddress, data.size(), kBlock, {}, 4711}, data, hashes}}, Options());
  };
  Dump("a", memory.substr(0, kBlock));
  hashes[2] = {};
  std::string other = memory;
  Change(other, 0, 1);  // the earlier image has the block of that hash
  Change(other, 2, 2);  // older data in the place of zeros
  auto written = write("b", other);
  ASSERT_TRUE(written) << written.error().ToString();
  EXPECT_EQ(written->zero_bytes, kBlock);
  EXPECT_EQ(written->shared_bytes, kBlock);
  EXPECT_EQ(written->new_bytes, 2 * kBlock);

  Change(other, 3, 3);
  auto refused = write("c", other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kDataLoss);
}

TEST_F(SharedUnitsTest, OnlyImagesOfTheSameUserAndKeyShare) {
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
    EXPECT_EQ(Dump("other-owner", memory), kBlocks * kBlock)
        << "files of another user are not shared";
  }
}

// The index of a foreign pack might list names that do not match its contents.
TEST_F(SharedUnitsTest, OnlyImagesOfThisInstallationShare) {
  const std::string memory = Memory(1);
  const OriginKey own(BlockSecret{1}), other(BlockSecret{2});
  auto options = Options();
  auto dump = [&](const std::string& name, std::optional<OriginKey> writer) {
    Manifest manifest;
    CommitOptions commit;
    commit.origin = std::move(writer);
    auto image = Write(name, memory, manifest, options);
    EXPECT_TRUE(image->Commit(manifest, commit));
    return last_.stored_bytes;
  };
  dump("unknown", std::nullopt);
  dump("other", other);
  options.origins = {own};
  EXPECT_EQ(dump("first", own), kBlocks * kBlock);
  EXPECT_EQ(dump("second", own), 0u);
  options.origins = {OriginKey(BlockSecret{3}), other};
  EXPECT_EQ(dump("third", own), 0u) << "one of several keys is enough";
}

// A copied image has packs with the same ids in other files.
TEST_F(SharedUnitsTest, AFolderThatIsCopiedIsACompleteImage) {
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
  EXPECT_GT(Gc().freed_units, 0u);
  ExpectIntact("c", memory);
  ExpectIntact("d", memory);
  EXPECT_EQ(Dump("e", memory), 0u);
  ExpectIntact("e", memory);
}

TEST_F(SharedUnitsTest, AFlippedBitIsFoundInTheImagesThatReferToItAndOnlyThose) {
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
  auto offset_of = [&](size_t block) -> uint64_t {
    const PackIndex& index = reader->index();
    const Id128 name = *Key().NameOf(memory.substr(block * kBlock, kBlock));
    for (uint32_t i = 0; i < reader->units(); ++i) {
      if (index.units[i].name == name) return index.ExtentOf(i).offset;
    }
    return ~0ull;
  };
  std::string file = store_ / "a/" + pack.path();
  struct Row {
    uint64_t offset;
    std::string images;
  };
  const Row rows[] = {{offset_of(40) + 5, "a"},
                      {offset_of(41) + 5, "a b"},
                      {offset_of(42) + kBlock - 1, "a b c"},
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

// A new image never refers to a damaged block of an earlier one, and the user is told.
TEST_F(SharedUnitsTest, DamagedUnitsAreWrittenAgain) {
  std::string memory = Memory(1);
  Dump("a", memory);
  Pack pack = Packs("a")[0];
  Flip(store_ / "a/" + pack.path(), 100);
  EXPECT_EQ(Dump("b", memory), kBlocks * kBlock);
  ASSERT_EQ(last_.notes.size(), 1u);
  EXPECT_NE(last_.notes[0].find("image a is damaged"), std::string::npos) << last_.notes[0];
  ExpectIntact("b", memory);
  EXPECT_NE(Findings("a"), "");
  // The next dump uses the undamaged copy of the newer image.
  EXPECT_EQ(Dump("c", memory), 0u);
  ExpectIntact("c", memory);
}

TEST_F(SharedUnitsTest, ADamagedIndexIsReportedAndNotUsed) {
  std::string memory = Memory(1);
  Dump("a", memory);
  const Pack pack = Packs("a")[0];
  Flip(store_ / "a/" + pack.path(), pack.size_bytes - 200);
  EXPECT_EQ(Dump("b", memory), kBlocks * kBlock);
  ASSERT_EQ(last_.notes.size(), 1u);
  EXPECT_EQ(last_.notes[0].rfind("image a is damaged, so its " + pack.path(), 0), 0u)
      << last_.notes[0];
  ExpectIntact("b", memory);
  EXPECT_NE(Findings("a"), "");
}

// Several images refer to a pack. The note names one of those that refer to the damaged unit.
TEST_F(SharedUnitsTest, ANoteAboutDamageNamesAnImageThatHasTheUnit) {
  constexpr size_t kDamaged = 17;
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string changed = memory;
  Change(changed, kDamaged, 1);
  Dump("b", changed);
  const Pack pack = Packs("a")[0];
  {
    auto image = ImageReader::Open(store_ / "a");
    auto reader = (*image)->OpenPack(pack);
    const PackIndex& index = reader->index();
    const Id128 name = *Key().NameOf(memory.substr(kDamaged * kBlock, kBlock));
    uint32_t number = 0;
    while (index.units[number].name != name) ++number;
    Flip(store_ / "a/" + pack.path(), index.ExtentOf(number).offset + 5);
  }
  ASSERT_EQ(Findings("b"), "");
  EXPECT_EQ(Dump("c", memory), kBlocks * kBlock);
  ASSERT_EQ(last_.notes.size(), 1u);
  EXPECT_EQ(last_.notes[0].rfind("image a is damaged, so its " + pack.path(), 0), 0u)
      << last_.notes[0];
  ExpectIntact("c", memory);
}

TEST_F(SharedUnitsTest, APackIsReadWhenItsLastCheckIsLongAgoOrItWasWrittenTo) {
  std::string memory = Memory(1);
  Dump("a", memory);
  std::string file = store_ / "a/" + Packs("a")[0].path();
  auto options = Options();
  options.always_check_bytes = 0;
  auto set_time = [&](int64_t seconds_from_now) {
    timespec times[2] = {{0, UTIME_OMIT}, {::time(nullptr) + seconds_from_now, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  };
  Flip(file, 100);
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
  Flip(file, 100);
  set_time(-100);
  EXPECT_EQ(Dump("checked", memory, options), 0u);
  EXPECT_GT(Packs("checked")[0].checked_unix_ns, Packs("a")[0].checked_unix_ns);
}

TEST_F(SharedUnitsTest, APackOfWhichLittleIsNeededIsNotLinked) {
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

TEST_F(SharedUnitsTest, AnImageLinksToABoundedNumberOfPacks) {
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
  ExpectIntact("20", memory);
}

// Earlier images and their packs must not use up the descriptors that CRIU's files and the packs of
// the new image need.
TEST_F(SharedUnitsTest, ASmallLimitOnOpenFilesIsNotExhausted) {
  constexpr rlim_t kLimit = 64;
  constexpr uint32_t kImages = 40;
  std::string memory = Memory(1);
  for (uint32_t i = 0; i < kImages; ++i) {
    Change(memory, i, i);
    Dump(std::to_string(i), memory);
  }
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{kLimit, kLimit};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_LT(Dump("new", memory), kBlocks * kBlock) << "nothing is shared";
    ExpectIntact("new", memory);
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace stasis::store
