#include <softgpu/kernel.h>

__device__ int counter = 100;

STASIS_KERNEL_NO_BARRIER(increment, ()) { counter += 1; }
