// Images whose blocks are written to several packs in parallel.
#include "store/pack_set.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "store/shared_units_testing.h"
#include "store/unit_writer.h"

namespace stasis::store {
namespace {

using namespace testing;  // NOLINT

constexpr PackLimits kMany{uint64_t{10} * kBlock, 4};

TEST_F(SharedUnitsTest, TheMoreBytesTheMorePacksUpToABound) {
  struct Row {
    PackLimits limits;
    size_t packs;
  };
  const Row rows[] = {{{}, 1},
                      {{kBlocks * kBlock, 4}, 1},
                      {{(kBlocks - 1) * kBlock, 4}, 2},
                      {{kBlock, 4}, 4},
                      {{kBlock, 1}, 1}};
  std::string memory = Memory(1);
  for (const Row& row : rows) {
    auto options = Options();
    options.share = false;
    options.packs = row.limits;
    EXPECT_EQ(Dump("a", memory, options), kBlocks * kBlock);
    auto packs = Packs("a");
    ASSERT_EQ(packs.size(), row.packs) << row.limits.bytes;
    // All packs are used; the size of each depends on the timing of the threads.
    for (const Pack& pack : packs) EXPECT_GT(pack.used_units, 0u);
    ExpectIntact("a", memory);
    ASSERT_TRUE(DeleteImage(store_ / "a"));
  }
}

TEST_F(SharedUnitsTest, AUnitThatWasNotStoredIsAnErrorAndNotZeros) {
  auto writer = MustBegin(store_.path(), "a");
  const WriteOptions options = Options();
  const UnitNames names = Key();
  auto units = UnitWriter::Begin(*writer, names, options, kPageBytes, 2, 0);
  ASSERT_TRUE(units) << units.error().ToString();
  (*units)->unit(1).stored.name = *names.NameOf("x");
  EXPECT_EQ((*units)->Decide(1), UnitWriter::Kind::kNew);
  ASSERT_TRUE((*units)->Finish());
  EXPECT_TRUE((*units)->Runs(0, 1)) << "a zero unit";
  EXPECT_FALSE((*units)->Runs(0, 2));
}

// Packs are linked, checked and freed one by one.
TEST_F(SharedUnitsTest, SeveralPacksAreSharedCheckedAndFreed) {
  auto options = Options();
  options.packs = kMany;
  std::string memory = Memory(1);
  std::string changed = memory;
  for (uint32_t i = 0; i < 40; ++i) {
    if (i % 5 != 0 && i != 3 && i != 18) Change(changed, i, i);
  }
  // Which pack a block is written to depends on the timing of the threads. The test needs a first
  // image whose packs all have enough of the 10 unchanged blocks to be linked by the second one.
  uint64_t added = 0;
  std::vector<Pack> packs;
  const auto suits = [&] { return packs.size() == 7 && added == uint64_t{30} * kBlock; };
  for (int attempt = 0; attempt < 20 && !suits(); ++attempt) {
    for (const char* name : {"a", "b"}) (void)DeleteImage(store_ / name);
    Dump("a", memory, options);
    added = Dump("b", changed, options);
    packs = Packs("b");
  }
  EXPECT_EQ(added, 30 * kBlock);
  ASSERT_EQ(packs.size(), 3u + 4u) << "30 blocks in packs of 10, and those of the first image";
  ExpectIntact("b", changed);

  for (const Pack& pack : Packs("a")) {
    const std::string file = store_ / "a/" + pack.path();
    Flip(file, pack.size_bytes - 10);
    EXPECT_EQ(Findings("a").rfind(pack.path() + " ", 0), 0u) << Findings("a");
    EXPECT_EQ(Findings("b").rfind(pack.path() + " ", 0), 0u) << Findings("b");
    Flip(file, pack.size_bytes - 10);
  }
  ASSERT_TRUE(DeleteImage(store_ / "a"));
  EXPECT_EQ(Gc().freed_units, 30u);
  ExpectIntact("b", changed);
  EXPECT_EQ(Dump("c", memory, options), 30 * kBlock) << "a hole is not a block";
  ExpectIntact("c", memory);
}

// Returns the exit code of a child: 0, or a number from 100 on for the step that failed.
int FillSecondPack(const std::string& store, const std::string& size) {
  if (::unshare(CLONE_NEWNS) != 0) return 100;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 101;
  if (::mount("tmpfs", store.c_str(), "tmpfs", 0, size.c_str()) != 0) return 102;
  {
    auto writer = ImageWriter::Begin(store, "a");
    if (!writer) return 110;
    WriteOptions options;
    options.packs = {uint64_t{20} * kBlock, 4};
    const std::string memory = Memory(1);
    auto written = WriteBlocks(
        **writer, Key(), {{{0, 0x7f0000000000, memory.size(), kBlock, {}, 4711}, memory}}, options);
    if (written) return 111;
    const Error& error = written.error();
    if (error.code != Code::kResourceExhausted || error.raw != ENOSPC || error.hint.empty()) {
      return 112;
    }
    // Counts the hidden folder and its contents.
    const std::string hidden = store + "/" + Names(store).at(0);
    if (Names(hidden + "/packs").size() != 2) return 113;
  }
  return Names(store).empty() ? 0 : 114;
}

TEST_F(SharedUnitsTest, AFullDiskInTheSecondPackFailsTheWholeAndGivesTheSpaceBack) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount a small file system";
  const pid_t child = ::fork();
  // The file system has space for 20 to 40 blocks.
  if (child == 0) ::_exit(FillSecondPack(store_.path(), "size=" + std::to_string(35 * kBlock)));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) >= 100 && WEXITSTATUS(status) <= 102) {
    GTEST_SKIP() << "this container cannot mount a tmpfs (" << WEXITSTATUS(status) << ")";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace stasis::store
