#include <softgpu/kernel.h>

#include "common/arithmetic.h"

// Mixes own[i] with the input and the previous stream's buffer; `passes` determines the run time.
STASIS_KERNEL_NO_BARRIER(mix, (uint32_t * own, const uint32_t* in, const uint32_t* before,
                               uint32_t count, uint32_t passes)) {
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint32_t x = own[i] ^ in[i];
    for (uint32_t pass = 0; pass < passes; ++pass) x = workloads::Step(x, before[i], i, pass);
    own[i] = x;
  }
}
