// Copies GPU memory of a running program to its arena. The copy may be torn, since the program
// writes meanwhile; the save behind the closed gate (shared_suspend.h) compares hashes and copies
// again what differs. So a program is stopped only for the data that has changed since.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/block_hash.h"
#include "base/deadline.h"
#include "dataplane/mover_pool.h"
#include "gpu_state/gpu_shards.h"

namespace stasis::gpu_state {

// Copies the memory behind `fds`, one for each of shard.ranges, to the shard's arena, which must be
// attached to the mover and have these ranges. The mover must have prepared hashes with this key.
// Afterwards the arena knows the hashes of its content. The mover holds the memory until its
// Release(). Returns the number of bytes copied.
Result<uint64_t> Precopy(GpuShard& shard, std::span<const int> fds, dataplane::MoverLink& mover,
                         const BlockKey& key, const std::function<void(uint64_t)>& progress,
                         const Deadline& deadline);

}  // namespace stasis::gpu_state
