// The former names in gpu_shards.h, for checkpoint/image_data.
#pragma once

#include "gpu_state/gpu_shards.h"

namespace stasis::gpu_state {

using Lot = GpuShard;

}  // namespace stasis::gpu_state
