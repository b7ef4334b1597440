// Loads GPU memory of a program before the program is restored on this host (stasis migrate).
// Arenas receive the memory of each image that arrives while the program is still running on the
// other host, so the restore of the last image reads only the changes since then.
//
// The arenas belong to this process. If it is killed, the next command that sweeps arenas frees
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/paths.h"
#include "base/result.h"
#include "device/gpu_map.h"
#include "gpu_state/gpu_shards.h"
#include "gpu_state/services.h"
#include "store/manifest.h"
#include "store/range_source.h"

namespace stasis::operations {

class DataAhead {
 public:
  // `most_arena_bytes` sets dataplane::ArenaOptions::most_bytes.
  DataAhead(Paths paths, uint64_t most_arena_bytes)
      : paths_(std::move(paths)), most_arena_bytes_(most_arena_bytes) {}
  ~DataAhead() { Free(); }
  DataAhead(const DataAhead&) = delete;
  DataAhead& operator=(const DataAhead&) = delete;

  // Updates the arenas so that they contain the GPU memory of an image, which `source` reads. After
  // an earlier Load, the earlier image of `source` must be the one of that Load. `progress` is
  // called with the number of bytes so far and returns false to cancel. After an error there are no
  // arenas.
  Status Load(const store::Manifest& manifest, const store::RangeSource& source,
              const std::function<bool(uint64_t)>& progress);
  // Returns kResourceExhausted unless this host has memory for both the image's CPU memory and the
  // arenas that Load() has to add for its GPU memory. Free arenas count as free memory.
  Status CheckMemory(const store::Manifest& manifest) const;
  // Registers each arena with the mover that will load it to its GPU, as translated by `map`, so
  // that the restore need not do this. Resident movers keep the arenas registered until they exit
  // after being idle for too long. Returns kCancelled soon after a stop is requested.
  // Otherwise returns a sentence for each GPU for which the restore is not saved this work, because
  // its mover ends with this process or the driver does not register the memory.
  Result<std::vector<std::string>> Register(gpu_state::Services& services,
                                            const device::GpuMap& map, const std::stop_token& stop,
                                            const Deadline& deadline);
  // Moves each arena to the shard of the same process and GPU, and sets GpuShard::arena and
  // GpuShard::ahead there. Frees the arenas that no shard needs.
  void MoveTo(std::vector<gpu_state::GpuShard>& shards);
  uint64_t bytes() const { return gpu_state::ShardBytes(shards_); }

 private:
  void Free();
  uint64_t FreeArenaBytes() const;
  Status AllocateAndRead(const store::RangeSource& source,
                         const std::function<bool(uint64_t)>& progress);

  const Paths paths_;
  const uint64_t most_arena_bytes_;
  std::optional<dataplane::ArenaStore> store_;
  std::vector<gpu_state::GpuShard> shards_;  // all with an arena
};

}  // namespace stasis::operations
