// A GPU's UUID between its two forms: 16 bytes, as the driver takes it, and "GPU-…", as people do.
#pragma once

#include "base/result.h"
#include "device/cuda/helper_protocol.h"
#include "device/device_control.h"

namespace stasis::device::cuda {

GpuUuid ToText(const wire::Uuid& uuid);
// kInvalidArgument when it is not "GPU-" and 8-4-4-4-12 hexadecimal digits.
Result<wire::Uuid> ToBytes(const GpuUuid& uuid);

}  // namespace stasis::device::cuda
