// Converts a GPU's UUID between the driver's 16 bytes and the text "GPU-…".
#pragma once

#include "base/result.h"
#include "device/cuda/helper_protocol.h"
#include "device/device_control.h"

namespace stasis::device::cuda {

GpuUuid ToText(const wire::Uuid& uuid);
// Returns kInvalidArgument if the text is not "GPU-" followed by 8-4-4-4-12 hexadecimal digits.
Result<wire::Uuid> ToBytes(const GpuUuid& uuid);

}  // namespace stasis::device::cuda
