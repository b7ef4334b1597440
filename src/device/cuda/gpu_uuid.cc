#include "device/cuda/gpu_uuid.h"

namespace stasis::device::cuda {

GpuUuid ToText(const wire::Uuid& uuid) { return GpuUuidOf(uuid.bytes); }

Result<wire::Uuid> ToBytes(const GpuUuid& uuid) {
  auto refuse = [&] {
    return Fail(Code::kInvalidArgument, "\"" + uuid.value + "\" is not the UUID of a GPU",
                "`stasis gpu ls` shows them");
  };
  wire::Uuid out = {};
  if (!GpuUuidBytes(uuid, out.bytes)) return refuse();
  return out;
}

}  // namespace stasis::device::cuda
