#include <softgpu/kernel.h>

#include "common/arithmetic.h"

// Adds the checksum of `words` to *sum: threads add in shared memory, and blocks to one word.
STASIS_KERNEL(checksum, (const uint32_t* words, uint32_t count, unsigned long long* sum)) {
  __shared__ unsigned long long of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  unsigned long long of_thread = 0;
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    of_thread += workloads::ChecksumShare(words[i], i);
  }
  atomicAdd(&of_block, of_thread);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(sum, of_block);
}
