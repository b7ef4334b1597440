#include "gpu_state/precopy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"
#include "gpu_state/testing/fake_movers.h"

namespace stasis::gpu_state {
namespace {

using dataplane::CopyOptions;
using dataplane::CopyResult;
using dataplane::Range;

constexpr uint64_t kBytes = 3 * uint64_t{kBlockBytes};
constexpr char kGpu[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";

// The program writes between the hash of a block and the copy of the block.
class MoverOfBusyProgram final : public fakes::FakeMover {
 public:
  MoverOfBusyProgram(fakes::CallLog& log, const BlockKey& key) : FakeMover(log, "A"), key_(key) {}
  Result<CopyResult> Save(const std::vector<Range>& ranges, std::span<const int>,
                          const CopyOptions& options, const Deadline&) override {
    CopyResult result;
    asked_ = options.known;
    for (size_t i = 0; i < hashed.size(); ++i) {
      const bool zero = hashed[i] == std::string(kBlockBytes, '\0');
      result.hashes.push_back(zero ? Id128{} : key_.Hash(hashed[i]));
      if (zero || result.hashes[i] == options.known[i]) continue;
      const auto at = static_cast<off_t>(ranges[0].arena_offset + i * kBlockBytes);
      if (::pwrite(arena, copied[i].data(), copied[i].size(), at) < 0) {
        return FailErrno(errno, "write to the arena");
      }
      result.copied_bytes += kBlockBytes;
    }
    return result;
  }

  int arena = -1;
  std::vector<std::string> hashed, copied;  // the content of each block at these moments
  std::vector<Id128> asked_;

 private:
  const BlockKey& key_;
};

class PrecopyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/dev/shm/stasis-precopy-test.XXXXXX";
    folder_ = ::mkdtemp(folder);
    dataplane::ArenaOptions options;
    options.place = folder_;
    ASSERT_TRUE(MakeDirs(folder_ + "/run"));
    auto store = dataplane::ArenaStore::Open({folder_ + "/run", folder_ + "/data"}, options);
    ASSERT_TRUE(store) << store.error().ToString();
    shard_.key = {process::ReadStat({::getpid()})->id, {kGpu}};
    shard_.ranges = {{0x1000, kBytes, 0, kBytes}};
    auto arena = store->Acquire(shard_.key, ::geteuid(), shard_.ranges);
    ASSERT_TRUE(arena) << arena.error().ToString();
    shard_.arena = std::move(*arena);
    mover_.arena = shard_.arena->fd();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  uint64_t Copy() {
    auto precopied = Precopy(
        shard_, {}, mover_, key_.id(), [](uint64_t) {}, Deadline());
    EXPECT_TRUE(precopied) << precopied.error().ToString();
    if (!precopied) return 0;
    const uint64_t bytes = precopied->bytes;
    EXPECT_TRUE(HashPrecopied(shard_, std::move(*precopied), key_, [] { return true; }));
    return bytes;
  }
  static std::string BlockOf(char c) { return std::string(kBlockBytes, c); }

  std::string folder_;
  BlockSecret secret_{1, 2, 3};
  BlockKey key_{secret_};
  fakes::CallLog log_;
  MoverOfBusyProgram mover_{log_, key_};
  GpuShard shard_;
};

// If the block later has the hashed content again, it must be copied nevertheless.
TEST_F(PrecopyTest, KnowsWhatWasCopiedAndNotWhatWasHashed) {
  mover_.hashed = {BlockOf('a'), BlockOf('b'), BlockOf('c')};
  mover_.copied = {BlockOf('a'), BlockOf('x'), BlockOf('c')};
  EXPECT_EQ(Copy(), kBytes);
  EXPECT_EQ(shard_.arena->TakeKnown(key_.id()),
            (std::vector<Id128>{key_.Hash(BlockOf('a')), key_.Hash(BlockOf('x')),
                                key_.Hash(BlockOf('c'))}));
}

TEST_F(PrecopyTest, DoesNotForgetBlocksThatItDidNotCopy) {
  mover_.hashed = mover_.copied = {BlockOf('a'), BlockOf('b'), BlockOf('c')};
  Copy();
  mover_.hashed = {BlockOf('a'), BlockOf('\0'), BlockOf('d')};
  mover_.copied = {BlockOf('?'), BlockOf('?'), BlockOf('d')};
  EXPECT_EQ(Copy(), uint64_t{kBlockBytes});
  EXPECT_EQ(shard_.arena->TakeKnown(key_.id()),
            (std::vector<Id128>{key_.Hash(BlockOf('a')), key_.Hash(BlockOf('b')),
                                key_.Hash(BlockOf('d'))}));
}

TEST_F(PrecopyTest, AnErrorLeavesNothingKnown) {
  mover_.hashed = mover_.copied = {BlockOf('a'), BlockOf('b'), BlockOf('c')};
  Copy();
  mover_.hashed = mover_.copied = {BlockOf('d'), BlockOf('e'), BlockOf('f')};
  mover_.arena = -1;
  EXPECT_FALSE(Precopy(
      shard_, {}, mover_, key_.id(), [](uint64_t) {}, Deadline()));
  EXPECT_TRUE(shard_.arena->TakeKnown(key_.id()).empty());
}

// Blocks that were copied but not hashed are unknown, and are copied again.
TEST_F(PrecopyTest, AHashThatIsStoppedLeavesTheRestUnknown) {
  mover_.hashed = mover_.copied = {BlockOf('a'), BlockOf('b'), BlockOf('c')};
  Copy();
  mover_.hashed[1] = mover_.copied[1] = BlockOf('d');
  auto precopied = Precopy(
      shard_, {}, mover_, key_.id(), [](uint64_t) {}, Deadline());
  ASSERT_TRUE(precopied);
  EXPECT_FALSE(HashPrecopied(shard_, std::move(*precopied), key_, [] { return false; }));
  const std::vector<Id128> known = shard_.arena->TakeKnown(key_.id());
  ASSERT_EQ(known.size(), 3u);
  EXPECT_EQ(known[0], key_.Hash(BlockOf('a')));
  EXPECT_NE(known[1], key_.Hash(BlockOf('b')));
  EXPECT_EQ(known[2], key_.Hash(BlockOf('c')));
}

}  // namespace
}  // namespace stasis::gpu_state
