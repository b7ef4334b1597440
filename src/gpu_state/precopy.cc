#include "gpu_state/precopy.h"

#include "dataplane/arena_hash.h"

namespace stasis::gpu_state {

// The mover's hashes are of the program's memory at some moment before or after the copy of a
// block, so a block that was copied is hashed again, in the arena. A block that was not copied had
// the same hash as the arena, or is zero: the arena's bytes and their hash are as before.
Result<uint64_t> Precopy(GpuShard& shard, std::span<const int> fds, dataplane::MoverLink& mover,
                         const BlockKey& key, const std::function<void(uint64_t)>& progress,
                         const Deadline& deadline) {
  dataplane::Arena& arena = *shard.arena;
  dataplane::CopyOptions copy;
  copy.hashes = true;
  copy.known = arena.TakeKnown(key.id());
  copy.known.resize(dataplane::BlockCount(shard.ranges));
  copy.progress = [&](uint64_t done, uint64_t) { progress(done); };
  STASIS_ASSIGN(auto saved, mover.Save(shard.ranges, fds, copy, deadline));
  std::vector<Id128> hashes = std::move(copy.known);
  std::vector<bool> copied(hashes.size());
  for (size_t i = 0; i < hashes.size(); ++i) {
    copied[i] = !saved.hashes[i].IsZero() && saved.hashes[i] != hashes[i];
  }
  STASIS_TRY(dataplane::HashBlocks(arena, key, copied, hashes, deadline));
  arena.NoteKnown({key.id(), std::move(hashes)});
  return saved.copied_bytes;
}

}  // namespace stasis::gpu_state
