// Checks that this machine can restore an image.
#pragma once

#include "device/ids.h"
#include "gpu_state/services.h"
#include "store/image_reader.h"

namespace stasis::checks {

// Returns an error if the image was made on another architecture or with another page size, if a
// file or the driver that the program needs is missing or different, if one of its process ids is
// taken (not checked with `new_pidns`), or if a GPU of the image is missing or has too little free
// memory. `map` is the user's --gpu-map. If the restore is `held`, CRIU itself checks that the
// process ids are free, and the agent's library is taken from the image only if this installation
// wrote the image. Does not read the image's data.
Status CheckRestorable(gpu_state::Services& services, const store::ImageReader& reader,
                       const device::GpuMap& map, bool new_pidns, bool held);

}  // namespace stasis::checks
