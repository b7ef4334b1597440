// What this machine needs to have for a restore.
#pragma once

#include "device/ids.h"
#include "gpu_state/services.h"
#include "store/image_reader.h"

namespace stasis::checks {

// The refusals of a restore that need no work: this machine has not what the program needs, its
// process ids are taken (none is with `new_pidns`), its GPU is not there or is full. `map` is what
// the user asked for.
Status CheckRestorable(gpu_state::Services& services, const store::ImageReader& reader,
                       const device::GpuMap& map, bool new_pidns);

}  // namespace stasis::checks
