// A rank of a collective on its GPU: publishes its progress and waits for the other rank.
#include <softgpu/kernel.h>

#include "common/arithmetic.h"

#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
#define LET_OTHERS_RUN() __nanosleep(1000)
#elif defined(__CUDACC__) || defined(__CUDA__)
#define LET_OTHERS_RUN()
#else
#include <unistd.h>
#define LET_OTHERS_RUN() usleep(20)
#endif

STASIS_KERNEL_NO_BARRIER(meet, (volatile uint32_t * mine, const volatile uint32_t* theirs,
                                uint32_t number)) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  *mine = number;
  while (*theirs < number) LET_OTHERS_RUN();
}

STASIS_KERNEL_NO_BARRIER(step_in_place, (uint32_t * words, uint32_t count, uint32_t round)) {
  const uint32_t stride = gridDim.x * blockDim.x;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
    words[i] = workloads::Step(words[i], i ^ round, i, round);
  }
}
