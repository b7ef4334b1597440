#include <softgpu/kernel.h>

#include "common/arithmetic.h"

// Sets word i to word first + i of the pseudo-random stream `seed`.
STASIS_KERNEL_NO_BARRIER(fill, (uint64_t * words, uint64_t count, uint64_t first, uint64_t seed)) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    words[i] = workloads::RandomWord(seed, first + i);
  }
}

// Adds the checksum of the words to found[0], and the number of words that fill() did not write to
// found[1]. Sums within blocks first, because thousands of launches add to the same two words.
STASIS_KERNEL(check, (const uint64_t* words, uint64_t count, uint64_t first, uint64_t seed,
                      unsigned long long* found)) {
  __shared__ unsigned long long sum_of_block;
  __shared__ unsigned long long wrong_of_block;
  if (threadIdx.x == 0) sum_of_block = wrong_of_block = 0;
  __syncthreads();
  unsigned long long sum = 0;
  unsigned long long wrong = 0;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    sum += workloads::ChecksumShare(words[i], first + i);
    wrong += words[i] != workloads::RandomWord(seed, first + i);
  }
  atomicAdd(&sum_of_block, sum);
  if (wrong != 0) atomicAdd(&wrong_of_block, wrong);
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicAdd(&found[0], sum_of_block);
  if (wrong_of_block != 0) atomicAdd(&found[1], wrong_of_block);
}
