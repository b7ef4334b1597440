#include "gpu_state/precopy.h"

#include "dataplane/arena_hash.h"

namespace stasis::gpu_state {

Result<Precopied> Precopy(GpuShard& shard, std::span<const int> fds, dataplane::MoverLink& mover,
                          const Id128& key_id, const std::function<void(uint64_t)>& progress,
                          const Deadline& deadline) {
  dataplane::CopyOptions copy;
  copy.hashes = true;
  copy.known = shard.arena->TakeKnown(key_id);
  copy.known.resize(dataplane::BlockCount(shard.ranges));
  copy.progress = [&](uint64_t done, uint64_t) { progress(done); };
  auto saved = mover.Save(shard.ranges, fds, copy, deadline);
  Status released = mover.Release(deadline);
  if (!saved) return Fail(std::move(saved).error());
  STASIS_TRY(std::move(released));
  Precopied result{std::move(copy.known), {}, saved->copied_bytes};
  for (size_t i = 0; i < result.hashes.size(); ++i) {
    result.copied.push_back(!saved->hashes[i].IsZero() && saved->hashes[i] != result.hashes[i]);
  }
  return result;
}

// The mover does not hash and copy a block at the same time, so a copied block is hashed again, in
// the arena. A block that was not copied had the same hash as the arena or was zero, so the arena's
// bytes and their hash are as before.
Status HashPrecopied(GpuShard& shard, Precopied precopied, const BlockKey& key,
                     const std::function<bool()>& go_on) {
  Status hashed =
      dataplane::HashBlocks(*shard.arena, key, precopied.copied, precopied.hashes, go_on);
  shard.arena->NoteKnown({key.id(), std::move(precopied.hashes)});
  return hashed;
}

}  // namespace stasis::gpu_state
