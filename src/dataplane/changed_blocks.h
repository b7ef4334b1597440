// Selects the blocks that a save copies: those neither zero nor already in the arena, chunk by
// chunk, while the GPU still computes hashes of later blocks. Runs only in the mover's process.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "dataplane/block_hasher.h"
#include "dataplane/copy.h"
#include "dataplane/range.h"

namespace stasis::dataplane {

class ChangedBlocks {
 public:
  // The ranges must be fully stored. `known` has, range by range, the hash of the data at each
  // block's place in the arena, or zero if unknown.
  ChangedBlocks(BlockHasher& hasher, const std::vector<Range>& ranges, std::vector<Id128> known,
                uint64_t chunk_bytes);

  // Starts to hash the memory mapped at `base`, which must not change until End().
  Status Begin(cu::CUdeviceptr base);
  // Returns the next group of blocks to copy. Waits only for the hashes of one chunk.
  Result<std::optional<Group>> Next();
  // May be called at any point. Afterwards the GPU no longer reads the memory.
  Status End() { return hasher_.End(); }

  // The following values are complete after Next() has returned the last group.
  const std::vector<Id128>& hashes() const { return hashes_; }
  uint64_t zero_bytes() const { return zero_bytes_; }
  uint64_t left_out_bytes() const { return left_out_bytes_; }

 private:
  // Returns true if the block at `position` must be copied.
  Result<bool> IsCopied(size_t position);

  BlockHasher& hasher_;
  const std::vector<Block> blocks_;
  const std::vector<Id128> known_;
  const uint64_t chunk_bytes_;
  std::vector<Id128> hashes_;
  size_t position_ = 0;  // index of the next block
  uint64_t done_ = 0;    // bytes of that block already in the last group
  uint64_t zero_bytes_ = 0;
  uint64_t left_out_bytes_ = 0;
};

}  // namespace stasis::dataplane
