// Checks that this machine can restore an image.
#pragma once

#include "device/ids.h"
#include "gpu_state/services.h"
#include "store/image_reader.h"

namespace stasis::checks {

// The refusals that need no work: a file or driver that the program needs is missing or different,
// its process ids are taken (not checked with `new_pidns`), its GPU is missing or full. `map` is
// the user's.
Status CheckRestorable(gpu_state::Services& services, const store::ImageReader& reader,
                       const device::GpuMap& map, bool new_pidns);

}  // namespace stasis::checks
