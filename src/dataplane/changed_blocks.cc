#include "dataplane/changed_blocks.h"

#include <algorithm>

namespace stasis::dataplane {

ChangedBlocks::ChangedBlocks(BlockNamer& namer, const std::vector<Range>& ranges,
                             std::vector<image::Id128> known, uint64_t chunk_bytes)
    : namer_(namer),
      blocks_(BlocksOf(ranges)),
      known_(std::move(known)),
      chunk_bytes_(chunk_bytes),
      names_(blocks_.size()) {}

Status ChangedBlocks::Begin(cu::CUdeviceptr base) {
  // As many as the first chunk has: no more is waited for before its copy begins.
  return namer_.Begin(base, blocks_, chunk_bytes_ / image::kBlockBytes);
}

Result<bool> ChangedBlocks::IsCopied(size_t position) {
  const Block& block = blocks_[position];
  STASIS_ASSIGN(const image::Id128 name, namer_.NameOf(position));
  names_[block.index] = name;
  if (!name.IsZero() && name != known_[block.index]) return true;
  left_out_bytes_ += block.bytes;
  if (name.IsZero()) zero_bytes_ += block.bytes;
  return false;
}

Result<std::optional<Group>> ChangedBlocks::Next() {
  std::optional<Group> group;
  for (; position_ < blocks_.size(); ++position_, done_ = 0) {
    const Block& block = blocks_[position_];
    // Before the next chunk is looked at, whose names may be far: this one can be copied.
    if (group && block.arena_offset / chunk_bytes_ != group->chunk) return group;
    // One that crosses the border of a chunk has been looked at when its first part was taken.
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
