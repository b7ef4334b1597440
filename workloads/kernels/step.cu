// Kernels shared by several workloads.
#include <softgpu/kernel.h>

#include "common/arithmetic.h"

// Mixes every element with the next element of `other`. `other` may be the same array as `own` only
// if `out` is a different one.
STASIS_KERNEL_NO_BARRIER(step, (uint32_t * out, const uint32_t* own, const uint32_t* other,
                                uint32_t count, uint32_t round)) {
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint32_t neighbour = i + 1 == count ? 0 : i + 1;
    out[i] = workloads::Step(own[i], other[neighbour], i, round);
  }
}

// Mixes every element in place, with its index and the round instead of a neighbour.
STASIS_KERNEL_NO_BARRIER(step_in_place, (uint32_t * words, uint32_t count, uint32_t round)) {
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    words[i] = workloads::Step(words[i], i ^ round, i, round);
  }
}
