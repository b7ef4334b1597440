// Parses the option --gpu-map OLD=NEW,…, which replaces GPUs at a restore.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device_control.h"

namespace stasis::device {

// Finds a GPU by UUID (or a prefix: "GPU-" and at least four digits), index, or name. Returns
// kNotFound if none matches, kInvalidArgument if several do.
Result<Gpu> FindGpu(std::string_view meant, const std::vector<Gpu>& gpus);

// Parses OLD=NEW pairs. OLD is looked up in `old_gpus`, the GPUs that the program had (for an
// image: those of the machine that made it). NEW is looked up in `new_gpus`, the GPUs of this
// machine. Rejects unknown and ambiguous GPUs, a different model, a repeated OLD, and one NEW for
// two OLDs. Driver 580 needs either no map, or a map with every GPU that the program could see,
// used or not, once as OLD and once as NEW. The map is therefore completed with the GPUs that
// `text` does not name. The state on such a GPU stays there unless other state moves there; then it
// moves to the GPU that became free, so "0=1" exchanges 0 and 1. Returns kFailedPrecondition if
// this machine lacks a GPU of the completed map. Empty text gives an empty map.
Result<GpuMap> ParseGpuMap(std::string_view text, const std::vector<Gpu>& old_gpus,
                           const std::vector<Gpu>& new_gpus);

// Returns a map for a program that is restored where some of its `old_gpus` are missing. Each GPU
// that is still there stays; the others move, in this order, to the GPUs of their model that the
// program did not have. Returns kUnimplemented unless there are exactly as many such GPUs as
// missing ones, because otherwise the user must choose.
Result<GpuMap> ReplaceMissingGpus(const std::vector<Gpu>& old_gpus,
                                  const std::vector<Gpu>& new_gpus);

// Returns the GPU that the map moves `gpu` to; `gpu` itself if the map does not name it.
GpuUuid Mapped(const GpuMap& map, const GpuUuid& gpu);

}  // namespace stasis::device
