// Names of blocks of GPU memory (image/block_name.h), computed where the memory is: by the kernel
// in kernel/block_names.cu, bit for bit as BlockKey::Name. Only in the mover's process.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "dataplane/gpu.h"
#include "dataplane/kernel/block_names.h"
#include "dataplane/range.h"
#include "image/block_name.h"

namespace stasis::dataplane {

struct BlockNames {
  std::vector<image::Id128> names;  // range by range; zero for a block of zeros
  uint64_t zero_bytes = 0;          // in those
  uint64_t elapsed_ns = 0;          // on the GPU
};

class BlockNamer {
 public:
  // Of so many blocks the portions are launched together: 32 GiB.
  static constexpr size_t kRoundBlocks = 16384;
  explicit BlockNamer(const Gpu& gpu, size_t round_blocks = kRoundBlocks)
      : gpu_(gpu), round_blocks_(round_blocks) {}
  BlockNamer(const BlockNamer&) = delete;

  // Loads the kernel at first, and takes the key. The driver compiles the kernel for the GPU that
  // is there, which takes it some 0.1 s where it has not kept the result; afterwards no more GPU
  // memory is needed than there is now. kUnimplemented: this driver cannot load it.
  Status Prepare(image::BlockKey key);
  // The key and what was named are gone from the GPU's memory.
  Status Forget();

  // Begins to name these blocks of memory that is accessible from `base` on, in their order: the
  // first so many of them, then ever larger portions. Nobody changes that memory before End().
  // kFailedPrecondition without a key.
  Status Begin(cu::CUdeviceptr base, std::vector<Block> blocks, size_t first_portion);
  // Of the so-manieth of them, in rising order; zero for a block of zeros. Waits for the portion
  // that it is in, and for nothing else that the GPU does.
  Result<image::Id128> NameOf(size_t position);
  // However far it came: the GPU reads nothing of that memory any more.
  Status End();
  // What the GPU needed for the portions that were waited for.
  uint64_t elapsed_ns() const { return elapsed_ns_; }

  // All at once: of all of `ranges`, which lie side by side from `base` on; each is cut into blocks
  // of image::kBlockBytes, of which the last may be shorter.
  Result<BlockNames> Name(cu::CUdeviceptr base, const std::vector<Range>& ranges);

  // For a measurement: `bytes` of random numbers at `base`, which repeat after 64 MiB; and whether
  // the first and last names of them are what the processor finds.
  Status Fill(cu::CUdeviceptr base, uint64_t bytes);
  Status Check(cu::CUdeviceptr base, uint64_t bytes, const std::vector<image::Id128>& names);

 private:
  // A launch; the event comes when its names are there.
  struct Portion {
    cu::CUevent done = nullptr;
    size_t end = 0;  // of the blocks that are named with it
  };
  // 1, 4, 16, ... blocks, and the last takes the rest.
  static constexpr size_t kPortions = 8;
  static constexpr size_t kGrowth = 4;

  Status Load();
  cu::CUresult Allocate();
  Status Await();
  Status Upload(cu::CUdeviceptr to, const void* from, size_t bytes);
  Status LaunchRound();
  Status AwaitPortion();

  uint64_t MemoryBytes() const;

  const Gpu& gpu_;
  const size_t round_blocks_;
  cu::CUfunction function_ = nullptr;
  cu::CUdeviceptr memory_ = 0;
  cu::CUstream stream_ = nullptr;
  cu::CUevent begin_ = nullptr;
  Portion portions_[kPortions];
  NameTask* tasks_ = nullptr;      // of a round, pinned, on their way to the GPU
  NameResult* results_ = nullptr;  // of a round, pinned: the kernel writes them
  cu::CUdeviceptr results_on_gpu_ = 0;
  std::optional<image::BlockKey> key_;

  // Of the work that has begun.
  cu::CUdeviceptr base_ = 0;
  std::vector<Block> blocks_;
  size_t first_portion_ = 0;
  size_t round_begin_ = 0;           // position of the first block of the round
  size_t launched_ = 0;              // portions of the round
  size_t awaited_ = 0;               // of them
  std::vector<image::Id128> names_;  // those that are there
  uint64_t elapsed_ns_ = 0;
};

}  // namespace stasis::dataplane
