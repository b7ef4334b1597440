// The load of one GPU: its mover allocates the memory of the shards on it, one shard after another,
// and fills it from their arenas, which may still be filled from an image, or from an image itself
// (GpuShard::source). Until the driver's restore, a ballast reserves memory for the driver's share
// and for the shards that follow.
//
// One thread calls MakeRoom and then Load; another one may call FreeBallast at the same time. The
// mover is used by one thread at a time, during a load by the loading thread.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "dataplane/mover_pool.h"
#include "gpu_state/gpu_shards.h"
#include "plan/plan.h"

namespace stasis::gpu_state {

class GpuLoad {
 public:
  // The shards must have ranges and must outlive this object. `most_ring_bytes` bounds the ring of
  // a load from sources.
  GpuLoad(dataplane::MoverLink& mover, std::vector<GpuShard*> shards, uint64_t most_ring_bytes)
      : mover_(mover), shards_(std::move(shards)), most_ring_bytes_(most_ring_bytes) {}

  // Requires that the shards have arenas or sources. Allocates the memory of the first shard, and a
  // ballast for `driver_bytes` and the other shards: all of it, or nothing.
  Status MakeRoom(uint64_t driver_bytes, const Deadline& deadline);
  // Sets GpuShard::memory of each shard. `loaded` is called with the number of bytes loaded so far.
  // `scope` is null if no other phase runs at the same time and all arenas are full.
  Status Load(plan::PhaseScope* scope, const Deadline& deadline,
              const std::function<void(uint64_t)>& loaded);
  // Returns the bytes of the arenas that had to be touched and registered first. Call it after
  // Load.
  uint64_t cold_bytes() const { return cold_bytes_; }
  // Returns when the ballast is freed. Waits for one part of a copy at most.
  Status FreeBallast(plan::PhaseScope* scope, const Deadline& deadline);

 private:
  // Attaches the shard's arena, or the ring for its source, and allocates its memory.
  Status Prepare(GpuShard& shard, uint64_t ballast_bytes, const Deadline& deadline);
  Status LoadFromArena(GpuShard& shard, plan::PhaseScope* scope, const Deadline& deadline,
                       const std::function<void(uint64_t)>& loaded);
  Status LoadFromSource(GpuShard& shard, plan::PhaseScope* scope, const Deadline& deadline,
                        const std::function<void(uint64_t)>& loaded);
  Status LoadShard(size_t index, plan::PhaseScope* scope, const Deadline& deadline,
                   const std::function<void(uint64_t)>& loaded);
  Result<uint64_t> AwaitFilled(const GpuShard& shard, uint64_t loaded, plan::PhaseScope* scope,
                               const Deadline& deadline);
  Status FreeIfWanted(plan::PhaseScope* scope, const Deadline& deadline);
  uint64_t BallastFor(size_t index) const;
  Status AcquireMover(plan::PhaseScope* scope);
  Status ReleaseMover(const Deadline& deadline);
  bool busy();

  dataplane::MoverLink& mover_;
  const std::vector<GpuShard*> shards_;
  const uint64_t most_ring_bytes_;
  uint64_t driver_bytes_ = 0;
  uint64_t cold_bytes_ = 0;  // used by the loading thread
  std::mutex mutex_;         // guards all below
  bool busy_ = false;        // a thread uses the mover
  bool wanted_ = false;      // FreeBallast waits for the loading thread
  bool free_ = true;         // there is no ballast
  bool loaded_ = false;      // all is loaded; the mover needs to keep only the ballast
};

}  // namespace stasis::gpu_state
