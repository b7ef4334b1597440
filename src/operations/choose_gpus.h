// Chooses the GPUs of a resume or restore, from the user's map and the GPUs granted to the program.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "device/ids.h"
#include "gpu_state/gpu_away.h"

namespace stasis::operations {

// Returns the GPUs that the processes may use: those that the agent shows to a process, if it hides
// others, and otherwise those that the process uses.
std::vector<device::GpuUuid> GpusOf(const gpu_state::Processes& processes);

// Returns a map to granted GPUs for processes that had the GPUs `wanted`. `map` is the user's: a
// map is checked, "" and "auto" let this function choose. Returns an empty map if nothing moves.
Result<device::GpuMap> ChooseGranted(const std::string& map, const std::string& granted,
                                     const std::vector<device::GpuUuid>& wanted,
                                     const std::vector<device::Gpu>& old_gpus,
                                     const std::vector<device::Gpu>& new_gpus);

}  // namespace stasis::operations
