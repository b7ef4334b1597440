#include "agent/cuda/allocate.h"

#include "agent/cuda/devices.h"
#include "agent/cuda/memory.h"

namespace stasis::agent {

bool LeavesSpare(const Need& need) {
  if (need.device == Need::kNone || need.bytes < kGranularity || !room::IsServed()) return true;
  CUdevice current = 0;
  size_t free = 0, total = 0;
  // cuMemGetInfo knows the current context's device only.
  const bool known = real::cuCtxGetDevice(&current) == CUDA_SUCCESS &&
                     (need.device == Need::kCurrent || need.device == current) &&
                     real::cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS;
  // The driver refuses an allocation that does not fit at all.
  if (!known || need.bytes > free) return true;
  return free - need.bytes >= room::SpareBytes(total);
}

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
