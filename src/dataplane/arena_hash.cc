#include "dataplane/arena_hash.h"

#include <atomic>
#include <cassert>

#include "base/parallel.h"
#include "dataplane/prefault.h"

namespace stasis::dataplane {

Status HashBlocks(const Arena& arena, const BlockKey& key, const std::vector<bool>& wanted,
                  std::vector<Id128>& hashes, const std::function<bool()>& go_on) {
  const std::vector<Range>& ranges = arena.record().ranges;
  assert(wanted.size() == BlockCount(ranges) && hashes.size() == wanted.size());
  std::vector<Block> blocks;
  for (const Block& block : BlocksOf(ranges)) {
    if (!wanted[block.index]) continue;
    hashes[block.index] = Id128{};
    blocks.push_back(block);
  }
  if (blocks.empty()) return {};
  STASIS_ASSIGN(const Mapping mapping, Mapping::Map(arena.fd(), UsedBytes(ranges)));
  auto hash = [&](size_t i) -> Status {
    const Block& block = blocks[i];
    hashes[block.index] = key.Hash({mapping.data() + block.arena_offset, block.bytes});
    return {};
  };
  const std::atomic<uint64_t> not_reported = 0;
  return ForEachWithProgress(blocks.size(), hash, not_reported, 0,
                             [&](uint64_t, uint64_t) { return go_on(); });
}

}  // namespace stasis::dataplane
