// A minimal kernel file, used by softgpu's tests.
#include <softgpu/kernel.h>

__device__ int counter = 100;
__device__ float table[1024];
__constant__ int step = 1;

STASIS_KERNEL_NO_BARRIER(add_one, (int* data, int n)) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) data[i] += 1;
}

STASIS_KERNEL_NO_BARRIER(bump, (int* out)) { *out = atomicAdd(&counter, step) + step; }

// One block of up to 256 threads reverses its part through shared memory.
STASIS_KERNEL(reverse, (int* data, int n)) {
  __shared__ int tile[256];
  int at = static_cast<int>(threadIdx.x);
  int base = static_cast<int>(blockIdx.x * blockDim.x);
  int width = n - base < static_cast<int>(blockDim.x) ? n - base : static_cast<int>(blockDim.x);
  if (at < width) tile[at] = data[base + at];
  __syncthreads();
  if (at < width) data[base + at] = tile[width - 1 - at];
}

STASIS_KERNEL(sum, (const int* data, int n, unsigned long long* total)) {
  STASIS_DYNAMIC_SHARED(int, partial);
  int at = static_cast<int>(threadIdx.x);
  partial[at] = at < n ? data[at] : 0;
  for (int stride = static_cast<int>(blockDim.x) / 2; stride > 0; stride /= 2) {
    __syncthreads();
    if (at < stride) partial[at] += partial[at + stride];
  }
  if (at == 0) atomicAdd(total, static_cast<unsigned long long>(partial[0]));
}
