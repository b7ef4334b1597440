#include <softgpu/kernel.h>

#include "common/arithmetic.h"

// All three arrays may be host memory that the device can access.
STASIS_KERNEL_NO_BARRIER(step_through_host, (uint32_t * own, const uint32_t* other,
                                             uint32_t* on_device, uint32_t count, uint32_t round)) {
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    own[i] = workloads::Step(own[i], other[i], i, round);
    on_device[i] += own[i];
  }
}
