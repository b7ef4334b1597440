// The GPU memory of an image as the source of a load without arenas: units are read from the packs
// to the mover's ring, and compared by the hashes that the GPU computes of the loaded memory.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "dataplane/load_source.h"
#include "gpu_state/gpu_shards.h"
#include "store/image_reader.h"
#include "store/unit_names.h"

namespace stasis::checkpoint {

// Returns the reason why hashes with this key cannot prove that memory is that of the image, or an
// empty string if they can.
std::string WhyNotByHash(const store::Manifest& manifest, const Id128& key_id);

// Returns the source of a shard of ShardsIn(). Opens the packs and looks up every unit, with the
// errors of store::UnitReader::Open. `image` must outlive the source.
Result<std::shared_ptr<const dataplane::LoadSource>> OpenSource(const store::ImageReader& image,
                                                                const store::UnitNames& names,
                                                                const gpu_state::GpuShard& shard);

}  // namespace stasis::checkpoint
