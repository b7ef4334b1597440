// --gpu-map OLD=NEW,…: which GPU takes the place of which when a process is restored.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device_control.h"

namespace stasis::device {

// The GPU that a person means: by its UUID (or its beginning, "GPU-" and four digits or more), its
// index, or its name. kNotFound when there is none, kInvalidArgument when there are several.
Result<Gpu> FindGpu(std::string_view meant, const std::vector<Gpu>& gpus);

// Reads OLD=NEW pairs. OLD is looked up among `old_gpus`, those that the process had (for an image:
// of the machine where it was made), NEW among `new_gpus`, those here. Refused: a GPU that is
// unknown or ambiguous, another model, an OLD named twice, one NEW for two.
// The driver wants every GPU that the program could see in the map, each as one OLD and one NEW
// (driver 580; also those it never used), or no map at all. So the map is completed: a GPU that is
// not named stays, and if its place is taken, it gets the one that was left: "0=1" exchanges 0
// and 1. kFailedPrecondition when that is not a GPU of this machine. Empty text gives an empty map.
Result<GpuMap> ParseGpuMap(std::string_view text, const std::vector<Gpu>& old_gpus,
                           const std::vector<Gpu>& new_gpus);

}  // namespace stasis::device
