#include "operations/choose_gpus.h"

#include <algorithm>

#include "device/gpu_map.h"
#include "device/granted_gpus.h"

namespace stasis::operations {

std::vector<device::GpuUuid> GpusOf(const gpu_state::Processes& processes) {
  std::vector<device::GpuUuid> gpus;
  for (const auto& p : processes) {
    for (const device::GpuUuid& gpu : p.visible.empty() ? p.gpus : p.visible) {
      if (std::find(gpus.begin(), gpus.end(), gpu) == gpus.end()) gpus.push_back(gpu);
    }
  }
  return gpus;
}

Result<device::GpuMap> ChooseGranted(const std::string& map, const std::string& granted,
                                     const std::vector<device::GpuUuid>& wanted,
                                     const std::vector<device::Gpu>& old_gpus,
                                     const std::vector<device::Gpu>& new_gpus) {
  STASIS_ASSIGN(const auto may_use, device::ReadGranted(granted, new_gpus));
  if (map.empty() || map == "auto") {
    return device::MapToGranted(old_gpus, new_gpus, wanted, may_use);
  }
  STASIS_ASSIGN(auto wished, device::ParseGpuMap(map, old_gpus, new_gpus));
  STASIS_TRY(device::CheckGranted(wished, wanted, may_use));
  return wished;
}

}  // namespace stasis::operations
