// Names of GPUs and of the states of a process's GPU memory. A journal entry contains nothing else
// that comes from a driver.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace stasis::device {

// The driver's states of a process, under the driver's names. `kNone`: the process does not use
// this driver.
enum class ProcessState : uint8_t { kNone, kRunning, kLocked, kCheckpointed, kFailed };

// A GPU's UUID as the driver prints it: "GPU-" and 36 characters. Devices are always identified by
// UUID, never by ordinal.
struct GpuUuid {
  std::string value;
  auto operator<=>(const GpuUuid&) const = default;
};

// Pairs of old and new GPU for the driver's restore: empty, or every GPU of the process exactly
// once.
using GpuMap = std::vector<std::pair<GpuUuid, GpuUuid>>;

}  // namespace stasis::device
