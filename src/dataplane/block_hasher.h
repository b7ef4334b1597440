// Computes hashes of blocks (base/block_hash.h) in GPU memory, with the kernel in
// kernel/block_hashes.cu. Results equal those of BlockKey::Hash. Runs only in the mover's process.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/block_hash.h"
#include "base/result.h"
#include "dataplane/gpu.h"
#include "dataplane/kernel/block_hashes.h"
#include "dataplane/range.h"

namespace stasis::dataplane {

struct BlockHashes {
  std::vector<Id128> hashes;  // range by range; zero for a zero block
  uint64_t zero_bytes = 0;    // bytes in zero blocks
  uint64_t elapsed_ns = 0;    // time on the GPU
};

class BlockHasher {
 public:
  // Maximum number of blocks launched in one round: 32 GiB.
  static constexpr size_t kRoundBlocks = 16384;
  explicit BlockHasher(const Gpu& gpu, size_t round_blocks = kRoundBlocks)
      : gpu_(gpu), round_blocks_(round_blocks) {}
  BlockHasher(const BlockHasher&) = delete;

  // Loads the kernel at the first call, and sets the key. The driver compiles the kernel for the
  // GPU, which takes about 0.1 s if it is not cached. No later call allocates GPU memory. Returns
  // kUnimplemented if the driver cannot load the kernel.
  Status Prepare(BlockKey key);
  // Erases the key and all results from GPU memory.
  Status Forget();

  // Starts to hash these blocks of memory mapped at `base`, in order: first `first_portion` blocks,
  // then ever larger portions. The memory must not change before End(). Returns kFailedPrecondition
  // without a key.
  Status Begin(cu::CUdeviceptr base, std::vector<Block> blocks, size_t first_portion);
  // Returns the hash of the block at `position`, zero for a zero block. Positions must ascend.
  // Waits only for the portion that contains the block.
  Result<Id128> HashOf(size_t position);
  // May be called at any point. Afterwards the GPU no longer reads the memory.
  Status End();
  // GPU time of all portions for which HashOf() has waited so far.
  uint64_t elapsed_ns() const { return elapsed_ns_; }

  // Hashes all of `ranges`, mapped contiguously at `base`. Each is cut into blocks of
  // kBlockBytes; the last one may be shorter.
  Result<BlockHashes> Hash(cu::CUdeviceptr base, const std::vector<Range>& ranges);

  // For benchmarks. Fill writes `bytes` random bytes at `base`, which repeat every 64 MiB. The
  // second function compares the first and last hashes with hashes computed by the CPU.
  Status Fill(cu::CUdeviceptr base, uint64_t bytes);
  Status Check(cu::CUdeviceptr base, uint64_t bytes, const std::vector<Id128>& hashes);

 private:
  // One kernel launch. The event signals that its hashes are available.
  struct Portion {
    cu::CUevent done = nullptr;
    size_t end = 0;  // end index of its blocks
  };
  // Each portion is kGrowth times as large as the one before; the last one takes the rest.
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
  HashTask* tasks_ = nullptr;      // one round, pinned, source of the upload
  HashResult* results_ = nullptr;  // one round, pinned, written by the kernel
  cu::CUdeviceptr results_on_gpu_ = 0;
  std::optional<BlockKey> key_;

  // State of the work in progress.
  cu::CUdeviceptr base_ = 0;
  std::vector<Block> blocks_;
  size_t first_portion_ = 0;
  size_t round_begin_ = 0;     // position of the first block in the round
  size_t launched_ = 0;        // portions launched in the round
  size_t awaited_ = 0;         // portions waited for
  std::vector<Id128> hashes_;  // the available hashes
  uint64_t elapsed_ns_ = 0;
};

}  // namespace stasis::dataplane
