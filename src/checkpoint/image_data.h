// Copies GPU data from arenas to an image and back.
#pragma once

#include <functional>
#include <vector>

#include "gpu_state/gpu_shards.h"
#include "store/block_writer.h"
#include "store/image_writer.h"
#include "store/range_source.h"

namespace stasis::checkpoint {

// The GPU data that a dump has written.
struct WrittenData {
  store::WrittenUnits blocks;  // DeviceRange::gpu is an index into `gpus`
  std::vector<device::GpuUuid> gpus;
};
// Writes the shards' data to packs of the image. `progress` replaces the function in `options`. It
// gets the number of bytes read so far, and returns false to cancel.
Result<WrittenData> WriteShards(const store::UnitNames& names, store::ImageWriter& writer,
                                const std::vector<gpu_state::GpuShard*>& shards,
                                store::WriteOptions options,
                                const std::function<bool(uint64_t)>& progress);

// Returns the shards of an image, without arenas. `process` returns, for each process id of the
// image, the process that gets the data.
Result<std::vector<gpu_state::GpuShard>> ShardsIn(
    const store::Manifest& manifest, const std::function<process::ProcessId(pid_t)>& process,
    uid_t owner);
// Fills the arenas of the shards from the beginning and checks every block. Bytes that the arena
// already has from an earlier image (GpuShard::ahead) stay if they are the same in this image.
// Updates GpuShard::filled, and calls `filled_more` when another chunk is filled. `progress` gets
// the number of bytes filled so far, and returns false to cancel. Both functions are called by one
// thread at a time, which may not be the caller's.
Status ReadShards(const store::RangeSource& source, const std::vector<gpu_state::GpuShard*>& shards,
                  const std::function<bool(uint64_t)>& progress,
                  const std::function<void()>& filled_more);

}  // namespace stasis::checkpoint
