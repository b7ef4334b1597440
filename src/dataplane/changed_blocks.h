// What a save copies of GPU memory: the blocks that are neither zero nor in the arena already,
// chunk by chunk, while the GPU still names those behind them. Only in the mover's process.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "dataplane/block_namer.h"
#include "dataplane/copy.h"
#include "dataplane/range.h"

namespace stasis::dataplane {

class ChangedBlocks {
 public:
  // Ranges that are stored whole. `known`: range by range, the name of what is in a block's place
  // in the arena; zero where that is not known.
  ChangedBlocks(BlockNamer& namer, const std::vector<Range>& ranges,
                std::vector<image::Id128> known, uint64_t chunk_bytes);

  // Of memory from `base` on, which keeps its bytes until End().
  Status Begin(cu::CUdeviceptr base);
  // The first chunk's names are waited for, and the GPU goes on with the others.
  Result<std::optional<Group>> Next();
  // However far it came: the GPU reads nothing of that memory any more.
  Status End() { return namer_.End(); }

  // After the last group.
  const std::vector<image::Id128>& names() const { return names_; }
  uint64_t zero_bytes() const { return zero_bytes_; }
  uint64_t left_out_bytes() const { return left_out_bytes_; }

 private:
  // Whether the so-manieth block is copied.
  Result<bool> IsCopied(size_t position);

  BlockNamer& namer_;
  const std::vector<Block> blocks_;
  const std::vector<image::Id128> known_;
  const uint64_t chunk_bytes_;
  std::vector<image::Id128> names_;
  size_t position_ = 0;  // of the block that comes next
  uint64_t done_ = 0;    // bytes of it that the last group had
  uint64_t zero_bytes_ = 0;
  uint64_t left_out_bytes_ = 0;
};

}  // namespace stasis::dataplane
