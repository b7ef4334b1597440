// GPU data between arenas and an image: cut in blocks, named, packed, and back.
#pragma once

#include <functional>
#include <vector>

#include "gpu_state/shared_lots.h"
#include "image/reader.h"
#include "image/writer.h"
#include "store/block_writer.h"

namespace stasis::checkpoint {

// What a dump writes: packs with what is new in any lot, and what the manifest says of it.
struct WrittenData {
  // DeviceRange::gpu is an index into `gpus`; whoever fills in the manifest looks them up there.
  store::WrittenBlocks blocks;
  std::vector<device::GpuUuid> gpus;
};
// `options` without its progress. `progress`: bytes looked at so far; false cancels.
Result<WrittenData> WriteLots(const Paths& paths, image::ImageWriter& writer,
                              const std::vector<gpu_state::Lot*>& lots,
                              store::BlockWriterOptions options,
                              const std::function<bool(uint64_t)>& progress);

// The lots of an image, for `process` in the place of each process id of the image. Without arenas.
Result<std::vector<gpu_state::Lot>> LotsIn(const image::Manifest& manifest,
                                           const std::function<process::ProcessId(pid_t)>& process,
                                           uid_t owner);
// Fills their arenas, each from its begin on; every block is checked. Lot::filled follows, and
// `filled_more` is called when it has come a chunk further. Both functions are called by one thread
// at a time, which need not be the caller's.
Status ReadLots(const image::ImageReader& reader, const std::vector<gpu_state::Lot*>& lots,
                const std::function<bool(uint64_t)>& progress,
                const std::function<void()>& filled_more);

}  // namespace stasis::checkpoint
