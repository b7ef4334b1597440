// Chooses GPUs for a program among those that it may use from now on (`--gpus`).
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device_control.h"

namespace stasis::device {

// Reads a list of granted GPUs: UUIDs, indices or names, as FindGpu does. Rejects unknown GPUs and
// a list without a GPU ("", "-1").
Result<std::vector<Gpu>> ReadGranted(std::string_view list, const std::vector<Gpu>& gpus);

// Returns a map for a program that has the GPUs `wanted` and may use only `granted` now; empty if
// nothing moves. A granted GPU that the program has stays in its place. The others move, in the
// order of `wanted`, to the granted GPUs of their model, in the order of `granted`. The map is
// completed with the rest of `old_gpus`, as for ParseGpuMap. Returns kFailedPrecondition if a GPU
// of `wanted` finds no place.
Result<GpuMap> MapToGranted(const std::vector<Gpu>& old_gpus, const std::vector<Gpu>& new_gpus,
                            const std::vector<GpuUuid>& wanted, const std::vector<Gpu>& granted);

// Returns kFailedPrecondition if the map moves a GPU of `wanted` to one that is not granted.
Status CheckGranted(const GpuMap& map, const std::vector<GpuUuid>& wanted,
                    const std::vector<Gpu>& granted);

}  // namespace stasis::device
