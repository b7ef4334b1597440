// Copies GPU memory of a running program to its arena. The copy may be torn, since the program
// writes meanwhile; the save behind the closed gate (shared_suspend.h) compares hashes and copies
// again only the blocks that differ. So a program is stopped only while its memory is hashed and
// changed blocks are copied.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/block_hash.h"
#include "base/deadline.h"
#include "dataplane/mover_pool.h"
#include "gpu_state/gpu_shards.h"

namespace stasis::gpu_state {

struct Precopied {
  std::vector<Id128> hashes;  // hashes of the arena's blocks before the copy; zero: unknown
  std::vector<bool> copied;   // the blocks whose bytes in the arena were replaced
  uint64_t bytes = 0;         // size of these blocks
};

// Copies the memory behind `fds`, one for each of shard.ranges, to the shard's arena, which must be
// attached to the mover and have these ranges. The mover must have prepared hashes with the key
// `key_id`. Returns when the mover has released the memory.
Result<Precopied> Precopy(GpuShard& shard, std::span<const int> fds, dataplane::MoverLink& mover,
                          const Id128& key_id, const std::function<void(uint64_t)>& progress,
                          const Deadline& deadline);

// Hashes the copied blocks on the CPU, so that the next save knows the arena's content. Stops if
// `go_on` returns false; copied blocks without a hash are then unknown.
Status HashPrecopied(GpuShard& shard, Precopied precopied, const BlockKey& key,
                     const std::function<bool()>& go_on);

}  // namespace stasis::gpu_state
