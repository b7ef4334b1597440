#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "testing.h"

namespace softgpu::test {
namespace {

constexpr size_t kSize = 4 * kMiB;

CUmemAllocationProp Properties(bool shareable = false) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  if (shareable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

const CUmemAccessDesc kReadWrite{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

using VmmTest = WithContext;

TEST_F(VmmTest, AHandleIsMappedAsAWhole) {
  CUmemAllocationProp prop = Properties();
  size_t granularity = 0;
  ASSERT_OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(granularity, 2 * kMiB);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, kMiB, &prop, 0));
  size_t before = FreeBytes();
  ASSERT_OK(cuMemCreate(&handle, kSize, &prop, 0));
  EXPECT_EQ(FreeBytes(), before - kSize) << "memory is taken before it is mapped";
  CUdeviceptr at = 0;
  ASSERT_OK(cuMemAddressReserve(&at, 4 * kSize, 0, 0, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, kSize, 2 * kMiB, handle, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, kSize / 2, 0, handle, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemMap(at + 4 * kSize, kSize, 0, handle, 0));
  ASSERT_OK(cuMemMap(at, kSize, 0, handle, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, kSize, 0, handle, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(at, 4 * kSize)) << "still mapped";

  ASSERT_OK(cuMemSetAccess(at, kSize, &kReadWrite, 1));
  ASSERT_OK(cuMemsetD8_v2(at, 5, kSize));
  // Maps the same memory at a second address.
  ASSERT_OK(cuMemMap(at + kSize, kSize, 0, handle, 0));
  ASSERT_OK(cuMemSetAccess(at + kSize, kSize, &kReadWrite, 1));
  unsigned char seen = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&seen, at + 2 * kSize - 1, 1));
  EXPECT_EQ(seen, 5);

  CUmemGenericAllocationHandle again = 0;
  ASSERT_OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at)));
  EXPECT_EQ(again, handle);
  ASSERT_OK(cuMemRelease(again));
  ASSERT_OK(cuMemRelease(handle));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle));
  EXPECT_EQ(FreeBytes(), before - kSize) << "the mappings hold it";
  ASSERT_OK(cuMemUnmap(at, 2 * kSize));
  EXPECT_EQ(FreeBytes(), before);
  ASSERT_OK(cuMemAddressFree(at, 4 * kSize));
}

SOFTGPU_ROLE(mapped_access) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  CUmemAllocationProp prop = Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;
  MUST(cuMemCreate(&handle, kSize, &prop, 0));
  MUST(cuMemAddressReserve(&at, kSize, 0, 0, 0));
  MUST(cuMemMap(at, kSize, 0, handle, 0));
  CUmemAccessDesc access = kReadWrite;
  if (arguments[0] == "read") access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (arguments[0] != "none") MUST(cuMemSetAccess(at, kSize, &access, 1));
  auto* byte = reinterpret_cast<volatile char*>(at);
  char seen = *byte;
  *byte = char(seen + 1);
  return 0;
}

TEST(VmmAccessTest, ThereIsNoAccessBeforeItIsSet) {
  EXPECT_EQ(RunRole("mapped_access", {"write"}), 0);
  EXPECT_NE(RunRole("mapped_access", {"none"}), 0);
  EXPECT_NE(RunRole("mapped_access", {"read"}), 0);
}

SOFTGPU_ROLE(importer) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  CUmemGenericAllocationHandle handle = 0;
  MUST(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{3}),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(3);
  CUdeviceptr at = 0;
  MUST(cuMemAddressReserve(&at, kSize, 0, 0, 0));
  MUST(cuMemMap(at, kSize, 0, handle, 0));
  MUST(cuMemSetAccess(at, kSize, &kReadWrite, 1));
  unsigned seen = 0;
  MUST(cuMemcpyDtoH_v2(&seen, at + kSize - 4, 4));
  int fd = -1;
  CUresult again =
      cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  MUST(cuMemsetD32_v2(at, 77, 1));
  MUST(cuCtxSynchronize());
  Say(std::to_string(seen) + " " + Name(again));
  Hear();
  return 0;
}

TEST_F(VmmTest, ImportedMemoryCannotBeExportedAgain) {
  CUmemAllocationProp prop = Properties(true);
  CUmemGenericAllocationHandle handle = 0, closed = 0;
  CUdeviceptr at = 0;
  size_t before = FreeBytes();
  ASSERT_OK(cuMemCreate(&handle, kSize, &prop, 0));
  ASSERT_OK(cuMemAddressReserve(&at, kSize, 0, 0, 0));
  ASSERT_OK(cuMemMap(at, kSize, 0, handle, 0));
  ASSERT_OK(cuMemSetAccess(at, kSize, &kReadWrite, 1));
  ASSERT_OK(cuMemsetD32_v2(at, 1234, kSize / 4));
  ASSERT_OK(cuCtxSynchronize());
  int fd = -1;
  ASSERT_OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));

  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  ASSERT_OK(cuMemCreate(&closed, kSize, &prop, 0));
  int none = -1;
  EXPECT_CU(
      CUDA_ERROR_INVALID_VALUE,
      cuMemExportToShareableHandle(&none, closed, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_OK(cuMemRelease(closed));

  Child importer("importer", {}, {.pass_fd = fd});
  EXPECT_EQ(importer.Hear(), "1234 CUDA_ERROR_INVALID_VALUE");
  unsigned seen = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&seen, at, 4));
  EXPECT_EQ(seen, 77u);
  // This process frees the memory while the other one still maps it. When the other process has
  // ended, only a descriptor keeps the memory.
  ASSERT_OK(cuMemUnmap(at, kSize));
  ASSERT_OK(cuMemRelease(handle));
  importer.Say("");
  importer.Wait();
  EXPECT_TRUE(Eventually([&] { return FreeBytes() == before - kSize; })) << "the fd alone";
  close(fd);
  EXPECT_EQ(FreeBytes(), before);
  ASSERT_OK(cuMemAddressFree(at, kSize));
}

TEST_F(VmmTest, OtherFilesAreNotImported) {
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{0}),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{9999}),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED,
            cuMemImportFromShareableHandle(&handle, nullptr, CU_MEM_HANDLE_TYPE_FABRIC));
}

TEST_F(VmmTest, ThousandsOfHandlesNeedNoDescriptors) {
  CUmemAllocationProp prop = Properties(true);
  std::vector<CUmemGenericAllocationHandle> handles(100);
  int lowest = dup(0);
  for (auto& handle : handles) ASSERT_OK(cuMemCreate(&handle, 2 * kMiB, &prop, 0));
  int after = dup(0);
  EXPECT_EQ(after, lowest + 1);
  close(lowest);
  close(after);
  for (auto& handle : handles) ASSERT_OK(cuMemRelease(handle));
}

}  // namespace
}  // namespace softgpu::test
