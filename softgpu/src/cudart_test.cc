// A program that uses a CUDA runtime and does not link the driver.

#include <dlfcn.h>

#include "testing.h"

#if !SOFTGPU_SANITIZED  // the runtime opens libcuda.so.1, which sanitized tests have linked in

namespace softgpu::test {
namespace {

template <class F>
F* From(void* library, const char* name) {
  F* function = reinterpret_cast<F*>(dlsym(library, name));
  EXPECT_NE(function, nullptr) << name;
  return function;
}

TEST(CudartTest, FindsTheDriverByLookUpsOnly) {
  void* runtime = dlopen(SOFTGPU_CUDART, RTLD_NOW);
  ASSERT_NE(runtime, nullptr) << dlerror();
  auto* allocate = From<int(void**, size_t)>(runtime, "cudaMalloc");
  auto* release = From<int(void*)>(runtime, "cudaFree");
  auto* copy = From<int(void*, const void*, size_t, int)>(runtime, "cudaMemcpy");
  auto* set = From<int(void*, int, size_t)>(runtime, "cudaMemset");
  auto* make_stream = From<int(CUstream*)>(runtime, "cudaStreamCreate");
  auto* end_stream = From<int(CUstream)>(runtime, "cudaStreamDestroy");
  auto* copy_async =
      From<int(void*, const void*, size_t, int, CUstream)>(runtime, "cudaMemcpyAsync");
  auto* synchronize = From<int()>(runtime, "cudaDeviceSynchronize");
  auto* entry = From<int(const char*, void**, unsigned long long, unsigned*)>(
      runtime, "cudaGetDriverEntryPoint");
  auto* last = From<int()>(runtime, "cudaGetLastError");

  void* device = nullptr;
  std::vector<char> back(4096);
  CUstream stream = nullptr;
  ASSERT_EQ(allocate(&device, 4096), 0);
  ASSERT_EQ(set(device, 7, 4096), 0);
  ASSERT_EQ(copy(back.data(), device, 4096, 2), 0);
  EXPECT_EQ(back[4095], 7);
  ASSERT_EQ(make_stream(&stream), 0);
  back.assign(4096, 9);
  ASSERT_EQ(copy_async(device, back.data(), 4096, 1, stream), 0);
  ASSERT_EQ(synchronize(), 0);
  ASSERT_EQ(copy(back.data(), device, 1, 4), 0);
  EXPECT_EQ(back[0], 9);
  EXPECT_EQ(copy(back.data(), device, 1, 5), 21);
  EXPECT_EQ(last(), 21);
  EXPECT_EQ(last(), 0);
  EXPECT_EQ(allocate(&device, size_t{1} << 40), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(end_stream(stream), 0);
  ASSERT_EQ(release(device), 0);

  void* address = nullptr;
  unsigned status = 9;
  ASSERT_EQ(entry("cuMemAlloc", &address, 0, &status), 0);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuMemAlloc_v2));
  EXPECT_EQ(status, unsigned(CU_GET_PROC_ADDRESS_SUCCESS));
  ASSERT_OK(cuDevicePrimaryCtxReset_v2(0));
}

}  // namespace
}  // namespace softgpu::test

#endif
