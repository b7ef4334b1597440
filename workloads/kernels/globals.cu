#include <softgpu/kernel.h>

#include "common/arithmetic.h"

constexpr uint32_t kWeights = 16;
constexpr uint32_t kTable = 4096;

// Zero-initialised.
__device__ uint32_t launches;
__device__ uint32_t table[kTable];
// Both variables are initialised in the module. The host overwrites `weights` through its device
// address.
__device__ uint32_t primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__constant__ uint32_t weights[kWeights] = {1};

STASIS_KERNEL_NO_BARRIER(turn, (uint32_t round)) {
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kTable; i += stride) {
    table[i] = workloads::Step(table[i] + primes[i % 8], weights[i % kWeights], i, round);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    launches += 1;
    primes[round % 8] += launches;
  }
}
