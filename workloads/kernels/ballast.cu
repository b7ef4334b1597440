#include <softgpu/kernel.h>

#include "common/arithmetic.h"

STASIS_KERNEL_NO_BARRIER(fill_random,
                         (uint64_t * words, uint64_t count, uint64_t first, uint64_t seed)) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    words[i] = workloads::RandomWord(seed, first + i);
  }
}
