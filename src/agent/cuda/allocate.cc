#include "agent/cuda/allocate.h"

#include "agent/cuda/devices.h"
#include "agent/cuda/memory.h"

namespace stasis::agent {

bool AwaitRoom(const Need& need, room::Wait* wait, uint32_t frees) {
  if (need.device == Need::kNone || !room::IsServed()) return false;
  CUdevice ordinal = need.device;
  if (ordinal == Need::kCurrent && real::cuCtxGetDevice(&ordinal) != CUDA_SUCCESS) return false;
  const Device* device = DeviceAt(ordinal);
  size_t total = 0;
  // More than the device has would wait for nothing: programs ask for it to find out the limit.
  if (device == nullptr || real::cuDeviceTotalMem_v2(&total, ordinal) != CUDA_SUCCESS ||
      need.bytes > total) {
    return false;
  }
  const uint64_t bytes = (need.bytes + kGranularity - 1) / kGranularity * kGranularity;
  return wait->Await({bytes, device->uuid}, frees);
}

}  // namespace stasis::agent
