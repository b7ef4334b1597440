#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include <numeric>
#include <set>

#include "testing.h"

namespace softgpu::test {
namespace {

using MemoryTest = WithContext;

TEST_F(MemoryTest, AllocationAndFreeChangeFreeMemory) {
  size_t before = FreeBytes();
  CUdeviceptr ptr = 0;
  ASSERT_OK(cuMemAlloc_v2(&ptr, 64 * kMiB));
  EXPECT_EQ(FreeBytes(), before - 64 * kMiB);
  ASSERT_OK(cuMemFree_v2(ptr));
  EXPECT_EQ(FreeBytes(), before);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(ptr));
}

TEST_F(MemoryTest, ATooLargeAllocationTakesNothing) {
  size_t before = FreeBytes();
  CUdeviceptr ptr = 0;
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&ptr, before + 1));
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&ptr, SIZE_MAX - 5));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&ptr, 0));
  EXPECT_EQ(FreeBytes(), before);
  ASSERT_OK(cuMemAlloc_v2(&ptr, before));
  EXPECT_EQ(FreeBytes(), 0u);
  ASSERT_OK(cuMemFree_v2(ptr));
}

TEST_F(MemoryTest, NewMemoryIsGarbage) {
  CUdeviceptr first = 0, second = 0;
  std::vector<uint64_t> one(512), two(512);
  ASSERT_OK(cuMemAlloc_v2(&first, 4096));
  ASSERT_OK(cuMemAlloc_v2(&second, 4096));
  ASSERT_OK(cuMemcpyDtoH_v2(one.data(), first, 4096));
  ASSERT_OK(cuMemcpyDtoH_v2(two.data(), second, 4096));
  EXPECT_NE(one, two);
  EXPECT_GT(std::set<uint64_t>(one.begin(), one.end()).size(), 500u);
  ASSERT_OK(cuMemFree_v2(first));
  ASSERT_OK(cuMemFree_v2(second));
}

TEST_F(MemoryTest, DestroyingAContextFreesItsMemory) {
  size_t before = FreeBytes();
  CUcontext other;
  ASSERT_OK(cuCtxCreate_v2(&other, 0, 0));
  EXPECT_LT(FreeBytes(), before) << "a context costs memory itself";
  CUdeviceptr ptr = 0;
  ASSERT_OK(cuMemAlloc_v2(&ptr, 8 * kMiB));
  void* host = nullptr;
  ASSERT_OK(cuMemAllocHost_v2(&host, 4096));
  ASSERT_OK(cuCtxDestroy_v2(other));
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, ALowerStackLimitMakesAContextCheaper) {
  size_t before = FreeBytes(), limit = 0;
  ASSERT_OK(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
  ASSERT_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16));
  EXPECT_GT(FreeBytes(), before + kMiB);
  ASSERT_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limit));
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, AddressRangeIsTheRequest) {
  CUdeviceptr ptr = 0, base = 0;
  size_t size = 0;
  ASSERT_OK(cuMemAlloc_v2(&ptr, 1000));
  ASSERT_OK(cuMemGetAddressRange_v2(&base, &size, ptr + 999));
  EXPECT_EQ(base, ptr);
  EXPECT_EQ(size, 1000u);
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, ptr + 1000));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(ptr, 1, 1001));
  ASSERT_OK(cuMemFree_v2(ptr));
}

TEST_F(MemoryTest, PitchedCopiesKeepRowsApart) {
  constexpr size_t kWidth = 100, kHeight = 7;
  CUdeviceptr ptr = 0;
  size_t pitch = 0;
  ASSERT_OK(cuMemAllocPitch_v2(&ptr, &pitch, kWidth, kHeight, 4));
  EXPECT_EQ(pitch % 512, 0u);
  ASSERT_OK(cuMemsetD8_v2(ptr, 0xEE, pitch * kHeight));
  std::vector<char> rows(kWidth * kHeight), back(kWidth * kHeight);
  std::iota(rows.begin(), rows.end(), 0);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = rows.data();
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = ptr;
  copy.dstPitch = pitch;
  copy.WidthInBytes = kWidth;
  copy.Height = kHeight;
  ASSERT_OK(cuMemcpy2D_v2(&copy));
  CUDA_MEMCPY2D out{};
  out.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  out.srcDevice = ptr;
  out.srcPitch = pitch;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = back.data();
  out.WidthInBytes = kWidth;
  out.Height = kHeight;
  ASSERT_OK(cuMemcpy2D_v2(&out));
  EXPECT_EQ(rows, back);
  unsigned char between = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&between, ptr + kWidth, 1));
  EXPECT_EQ(between, 0xEE);
  ASSERT_OK(cuMemFree_v2(ptr));
}

TEST_F(MemoryTest, SetsAndCopiesOfEveryWidth) {
  CUdeviceptr a = 0, b = 0;
  ASSERT_OK(cuMemAlloc_v2(&a, 4096));
  ASSERT_OK(cuMemAlloc_v2(&b, 4096));
  ASSERT_OK(cuMemsetD32_v2(a, 0x01020304, 1024));
  ASSERT_OK(cuMemsetD16_v2(a, 0x0506, 1));
  ASSERT_OK(cuMemsetD8_v2(a + 3, 9, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(a + 1, 0, 1));
  ASSERT_OK(cuMemcpyDtoD_v2(b, a, 4096));
  ASSERT_OK(cuMemcpy(a, b, 16));
  unsigned word = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&word, b, 4));
  EXPECT_EQ(word, 0x09020506u);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(&word), &word, 4));
  ASSERT_OK(cuMemFree_v2(a));
  ASSERT_OK(cuMemFree_v2(b));
}

TEST_F(MemoryTest, PinnedMemoryIsKnownAndReachable) {
  void* host = nullptr;
  CUdeviceptr device = 0, ptr = 0;
  unsigned flags = 0;
  ASSERT_OK(cuMemHostAlloc(&host, 8192, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
  ASSERT_OK(cuMemHostGetFlags(&flags, host));
  EXPECT_EQ(flags, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
  ASSERT_OK(cuMemHostGetDevicePointer_v2(&device, host, 0));
  ASSERT_OK(cuMemAlloc_v2(&ptr, 8192));
  memset(host, 7, 8192);
  ASSERT_OK(cuMemcpyDtoD_v2(ptr, device, 8192));
  memset(host, 0, 8192);
  ASSERT_OK(cuMemcpyDtoH_v2(host, ptr, 8192));
  EXPECT_EQ(static_cast<char*>(host)[8191], 7);
  ASSERT_OK(cuMemFree_v2(ptr));
  ASSERT_OK(cuMemFreeHost(host));

  std::vector<char> own(4096);
  ASSERT_OK(cuMemHostRegister_v2(own.data(), own.size(), 0));
  EXPECT_CU(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            cuMemHostRegister_v2(own.data() + 100, 1, 0));
  ASSERT_OK(cuMemHostUnregister(own.data()));
  EXPECT_CU(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own.data()));
}

TEST_F(MemoryTest, BufferIdsAreNeverUsedTwice) {
  std::set<unsigned long long> seen;
  for (int i = 0; i < 20; ++i) {
    CUdeviceptr ptr = 0;
    unsigned long long id = 0;
    ASSERT_OK(cuMemAlloc_v2(&ptr, 4096));
    ASSERT_OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
    EXPECT_TRUE(seen.insert(id).second);
    ASSERT_OK(cuMemFree_v2(ptr));
  }
}

TEST_F(MemoryTest, AttributesOfDeviceHostAndForeignPointers) {
  CUdeviceptr ptr = 0;
  ASSERT_OK(cuMemAlloc_v2(&ptr, 4096));
  CUmemorytype type{};
  CUcontext owner = nullptr;
  unsigned managed = 9;
  int ordinal = -9;
  ASSERT_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr + 5));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  ASSERT_OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
  EXPECT_EQ(owner, context_);
  ASSERT_OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr));
  EXPECT_EQ(managed, 0u);
  ASSERT_OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
  EXPECT_EQ(ordinal, 0);
  int on_stack = 0;
  auto foreign = reinterpret_cast<CUdeviceptr>(&on_stack);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, foreign));
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT};
  void* into[] = {&type, &owner};
  ASSERT_OK(cuPointerGetAttributes(2, wanted, into, foreign));
  EXPECT_EQ(int(type), 0);
  EXPECT_EQ(owner, nullptr);
  ASSERT_OK(cuMemFree_v2(ptr));
}

TEST_F(MemoryTest, ManagedMemoryIsOneAddressForAll) {
  CUdeviceptr ptr = 0;
  unsigned managed = 0;
  ASSERT_OK(cuMemAllocManaged(&ptr, 4096, CU_MEM_ATTACH_GLOBAL));
  ASSERT_OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr));
  EXPECT_EQ(managed, 1u);
  ASSERT_OK(cuMemsetD8_v2(ptr, 3, 4096));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(*reinterpret_cast<char*>(ptr), 3);
  ASSERT_OK(cuMemFree_v2(ptr));
}

TEST_F(MemoryTest, PoolsCountUsedMemory) {
  CUmemoryPool pool = nullptr;
  CUdeviceptr ptr = 0;
  cuuint64_t used = 1;
  ASSERT_OK(cuDeviceGetDefaultMemPool(&pool, 0));
  ASSERT_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 0u);
  size_t before = FreeBytes();
  ASSERT_OK(cuMemAllocAsync(&ptr, kMiB, nullptr));
  ASSERT_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, kMiB);
  ASSERT_OK(cuMemsetD8Async(ptr, 1, kMiB, nullptr));
  ASSERT_OK(cuMemFreeAsync(ptr, nullptr));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(FreeBytes(), before);

  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool own = nullptr;
  ASSERT_OK(cuMemPoolCreate(&own, &props));
  ASSERT_OK(cuMemAllocFromPoolAsync(&ptr, 4096, own, nullptr));
  ASSERT_OK(cuMemFreeAsync(ptr, nullptr));
  ASSERT_OK(cuCtxSynchronize());
  ASSERT_OK(cuMemPoolDestroy(own));
}

uint64_t Attribute(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  EXPECT_OK(cuMemPoolGetAttribute(pool, attribute, &value));
  return value;
}

TEST_F(MemoryTest, PoolsKeepFreedMemoryUpToTheirThreshold) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.maxSize = 4 * kMiB;
  CUmemoryPool pool = nullptr;
  ASSERT_OK(cuMemPoolCreate(&pool, &props));
  cuuint64_t threshold = 2 * kMiB;
  ASSERT_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  size_t before = FreeBytes();
  CUdeviceptr first = 0, second = 0, third = 0;
  ASSERT_OK(cuMemAllocFromPoolAsync(&first, 2 * kMiB, pool, nullptr));
  ASSERT_OK(cuMemAllocFromPoolAsync(&second, 2 * kMiB, pool, nullptr));
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&third, kMiB, pool, nullptr));
  ASSERT_OK(cuMemFreeAsync(first, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(first, nullptr));
  ASSERT_OK(cuMemFreeAsync(second, nullptr));
  EXPECT_EQ(Attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(Attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 4 * kMiB);
  ASSERT_OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(Attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 2 * kMiB);
  EXPECT_EQ(FreeBytes(), before - 2 * kMiB);
  ASSERT_OK(cuMemPoolTrimTo(pool, 0));
  EXPECT_EQ(FreeBytes(), before);
  EXPECT_EQ(Attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 4 * kMiB);
  ASSERT_OK(cuMemPoolDestroy(pool));
}

SOFTGPU_ROLE(touch) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  CUdeviceptr ptr = 0;
  MUST(cuMemAlloc_v2(&ptr, 65536));
  if (arguments[0] == "freed") MUST(cuMemFree_v2(ptr));
  if (arguments[0] == "beyond") ptr += 65536;
  [[maybe_unused]] char seen = *reinterpret_cast<volatile char*>(ptr);
  return 0;
}

// A sanitizer reports the fault itself and exits with its own code.
bool Faulted(int status) { return status == -SIGSEGV || status == 1 || status == 66; }

TEST(MemoryFaultTest, UnmappedAddressesFault) {
  EXPECT_EQ(RunRole("touch", {"mapped"}), 0);
  EXPECT_TRUE(Faulted(RunRole("touch", {"freed"})));
  EXPECT_TRUE(Faulted(RunRole("touch", {"beyond"})));
}

SOFTGPU_ROLE(hold) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  CUdeviceptr ptr = 0;
  MUST(cuMemAlloc_v2(&ptr, 100 * kMiB));
  Say("held");
  Hear();
  return 0;
}

TEST_F(MemoryTest, AKilledProcessFreesItsMemory) {
  size_t before = FreeBytes();
  Child child("hold");
  ASSERT_EQ(child.Hear(), "held");
  EXPECT_LE(FreeBytes(), before - 100 * kMiB);
  child.Kill(SIGKILL);
  child.Wait();
  EXPECT_TRUE(Eventually([&] { return FreeBytes() == before; }));
}

}  // namespace
}  // namespace softgpu::test
