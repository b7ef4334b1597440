#include "dataplane/changed_blocks.h"

#include <algorithm>
#include <cassert>

namespace stasis::dataplane {

ChangedBlocks::ChangedBlocks(BlockHasher& hasher, const std::vector<Range>& ranges,
                             std::vector<Id128> known, uint64_t chunk_bytes)
    : hasher_(hasher),
      blocks_(BlocksOf(ranges)),
      known_(std::move(known)),
      chunk_bytes_(chunk_bytes),
      hashes_(blocks_.size()) {
  assert(known_.size() == blocks_.size());
}

Status ChangedBlocks::Begin(cu::CUdeviceptr base) {
  // The first portion has as many blocks as a chunk, so the first copy waits for no other hashes.
  return hasher_.Begin(base, blocks_, chunk_bytes_ / kBlockBytes);
}

Result<bool> ChangedBlocks::IsCopied(size_t position) {
  const Block& block = blocks_[position];
  STASIS_ASSIGN(const Id128 hash, hasher_.HashOf(position));
  hashes_[block.index] = hash;
  if (!hash.IsZero() && hash != known_[block.index]) return true;
  left_out_bytes_ += block.bytes;
  if (hash.IsZero()) zero_bytes_ += block.bytes;
  return false;
}

Result<std::optional<Group>> ChangedBlocks::Next() {
  std::optional<Group> group;
  for (; position_ < blocks_.size(); ++position_, done_ = 0) {
    const Block& block = blocks_[position_];
    // Return this chunk before the next one is examined, because its hashes may take a long time.
    if (group && block.arena_offset / chunk_bytes_ != group->chunk) return group;
    // A block that crosses a chunk boundary was examined with its first part.
    if (done_ == 0) {
      STASIS_ASSIGN(const bool copied, IsCopied(position_));
      if (!copied) continue;
    }
    while (done_ < block.bytes) {
      const uint64_t at = block.arena_offset + done_;
      if (!group) group = Group{at / chunk_bytes_, {}, 0};
      if (at / chunk_bytes_ != group->chunk) return group;
      const uint64_t part = std::min(block.bytes - done_, chunk_bytes_ - at % chunk_bytes_);
      AddPiece(group->pieces, {block.device_offset + done_, at, part}, chunk_bytes_);
      group->bytes += part;
      done_ += part;
    }
  }
  return group;
}

}  // namespace stasis::dataplane
