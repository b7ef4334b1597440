// Tests the choice of a codec with simulated times for storage and compression.
#include "store/codec_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

namespace stasis::store {
namespace {

constexpr size_t kBlockBytes = 2 << 20;

struct Machine {
  double storage;     // bytes per second, of all threads together
  double one_writer;  // bytes per second, of one thread at most
  size_t threads;
  double lz4, zstd;  // bytes per second, of one thread
};

// Returns the compression ratio of the block with this number: its compressed size divided by its
// original size.
using Ratio = std::function<double(size_t block)>;

struct Run {
  double seconds = 0;
  std::map<Codec, size_t> blocks;
};

// Simulates threads that take one block after the other, compress it or not, and wait for the
// storage, which writes one block at a time in the order of arrival.
Run Write(Compression how, const Machine& machine, size_t blocks, const Ratio& ratio) {
  struct Thread {
    double at = 0;
    double stored = 0;  // of a block that is ready to be written; 0 for none
  };
  CodecChoice choice(how);
  Run run;
  std::vector<Thread> threads(machine.threads);
  double storage_free = 0;
  size_t next_block = 0;
  for (;;) {
    auto is_busy = [&](const Thread& one) { return one.stored > 0 || next_block < blocks; };
    Thread* next = nullptr;
    for (Thread& one : threads) {
      if (is_busy(one) && (next == nullptr || one.at < next->at)) next = &one;
    }
    if (next == nullptr) break;
    if (next->stored > 0) {
      storage_free = std::max(storage_free, next->at) + next->stored / machine.storage;
      const double end = std::max(storage_free, next->at + next->stored / machine.one_writer);
      choice.Written(static_cast<size_t>(next->stored), end - next->at);
      run.seconds = std::max(run.seconds, end);
      *next = {end, 0};
      continue;
    }
    const double smaller = ratio(next_block++);
    next->stored = kBlockBytes;
    Codec codec = Codec::kNone;
    if (auto chosen = choice.Next(kBlockBytes)) {
      const bool is_lz4 = *chosen == Codec::kLz4;
      const double seconds = kBlockBytes / (is_lz4 ? machine.lz4 : machine.zstd);
      if (smaller < 1) {
        codec = *chosen;
        next->stored *= is_lz4 ? 0.2 + 0.8 * smaller : smaller;  // zstd saves more
      }
      next->at += seconds;
      choice.Compressed(*chosen, kBlockBytes, static_cast<size_t>(next->stored), seconds);
    }
    ++run.blocks[codec];
  }
  return run;
}

TEST(CodecChoice, ACodecThatIsGivenIsUsed) {
  EXPECT_EQ(CodecChoice(Compression::kNone).Next(kBlockBytes), std::nullopt);
  EXPECT_EQ(CodecChoice(Compression::kLz4).Next(kBlockBytes), Codec::kLz4);
  EXPECT_EQ(CodecChoice(Compression::kZstd).Next(kBlockBytes), Codec::kZstd);
  EXPECT_EQ(CodecChoice(Compression::kAuto).Next(kBlockBytes), std::nullopt)
      << "nothing is known yet";
}

TEST(CodecChoice, AutoCompressesForASlowStorageAndNotForAFastOne) {
  auto half = [](size_t) { return 0.4; };
  const Machine slow{100e6, 1e9, 4, 800e6, 400e6};
  const Machine quick{20e9, 4e9, 4, 800e6, 400e6};
  const auto on_slow = Write(Compression::kAuto, slow, 1000, half);
  EXPECT_GT(on_slow.blocks.at(Codec::kZstd), 900u);
  EXPECT_LT(on_slow.seconds, 0.5 * Write(Compression::kNone, slow, 1000, half).seconds);
  auto on_quick = Write(Compression::kAuto, quick, 1000, half);
  EXPECT_GT(on_quick.blocks[Codec::kNone], 980u);
}

// Tests all combinations of storage, processor and data.
TEST(CodecChoice, AutoIsNeverSlowerThanTheStorageAlone) {
  const std::map<const char*, Ratio> data = {
      {"nothing to save", [](size_t) { return 1.0; }},
      {"a little to save", [](size_t) { return 0.9; }},
      {"half to save", [](size_t) { return 0.5; }},
      {"all to save", [](size_t) { return 0.02; }},
      {"weights, then a cache", [](size_t i) { return i < 1000 ? 1.0 : 0.3; }},
      {"a cache, then weights", [](size_t i) { return i < 1000 ? 0.3 : 1.0; }},
      {"each other block", [](size_t i) { return i % 2 == 0 ? 0.3 : 1.0; }},
  };
  for (double storage : {50e6, 200e6, 500e6, 1e9, 2e9, 5e9, 20e9}) {
    for (double processor : {0.3, 1.0, 4.0}) {
      for (size_t threads : {4, 18}) {
        for (const auto& [what, ratio] : data) {
          const Machine machine{storage, 3e9, threads, processor * 800e6, processor * 350e6};
          const double alone = Write(Compression::kNone, machine, 2000, ratio).seconds;
          const double seconds = Write(Compression::kAuto, machine, 2000, ratio).seconds;
          // Each thread may have started a block before the first time was measured.
          EXPECT_LT(seconds, 1.03 * alone + kBlockBytes / machine.zstd)
              << what << ", storage " << storage << ", processor " << processor << ", " << threads
              << " threads: alone " << alone;
        }
      }
    }
  }
}

TEST(CodecChoice, AutoFollowsDataAndStorageThatChange) {
  // 6 GB of weights come first. Compression is still tried from time to time, so that the
  // compressible cache after them is noticed.
  const Machine slow{200e6, 1e9, 4, 800e6, 400e6};
  const auto run =
      Write(Compression::kAuto, slow, 4000, [](size_t i) { return i < 3000 ? 1.0 : 0.2; });
  EXPECT_GT(run.blocks.at(Codec::kZstd) + run.blocks.at(Codec::kLz4), 800u);

  // When the storage becomes fast, blocks are stored uncompressed again.
  CodecChoice choice(Compression::kAuto);
  size_t compressed = 0;
  for (size_t i = 0; i < 2000; ++i) {
    const bool is_slow = i < 500;
    auto codec = choice.Next(kBlockBytes);
    if (codec) choice.Compressed(*codec, kBlockBytes, kBlockBytes / 2, kBlockBytes / 400e6);
    choice.Written(codec ? kBlockBytes / 2 : kBlockBytes,
                   (codec ? 0.5 : 1) * kBlockBytes / (is_slow ? 50e6 : 4e9));
    compressed += codec && i >= 600 ? 1 : 0;
    if (i == 499) {
      EXPECT_TRUE(codec);
    }
  }
  EXPECT_LT(compressed, 30u);
}

}  // namespace
}  // namespace stasis::store
