// GPU data on its way from arenas to an image and back.
#pragma once

#include <functional>
#include <vector>

#include "gpu_state/gpu_shards.h"
#include "store/block_writer.h"
#include "store/image_reader.h"
#include "store/image_writer.h"

namespace stasis::checkpoint {

// What a dump has written of all shards.
struct WrittenData {
  store::WrittenUnits blocks;  // DeviceRange::gpu is an index into `gpus`
  std::vector<device::GpuUuid> gpus;
};
// Writes the shards' data to packs of the image. `progress` replaces that of the options: it gets
// the bytes looked at so far and returns false to cancel.
Result<WrittenData> WriteShards(const Paths& paths, store::ImageWriter& writer,
                                const std::vector<gpu_state::GpuShard*>& shards,
                                store::WriteOptions options,
                                const std::function<bool(uint64_t)>& progress);

// Returns the shards of an image, without arenas. `process` maps each process id of the image.
Result<std::vector<gpu_state::GpuShard>> ShardsIn(
    const store::Manifest& manifest, const std::function<process::ProcessId(pid_t)>& process,
    uid_t owner);
// Fills their arenas from the beginning and checks every block. GpuShard::filled follows, and
// `filled_more` is called when another chunk is filled. Both functions are called by one thread at
// a time, which need not be the caller's.
Status ReadShards(const store::ImageReader& reader, const std::vector<gpu_state::GpuShard*>& shards,
                  const std::function<bool(uint64_t)>& progress,
                  const std::function<void()>& filled_more);

}  // namespace stasis::checkpoint
