// Memory of HIP programs: allocation, copies, pointers, sharing. The driver's own tests cover what
// HIP has in common with it.

#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "hip.h"

namespace softgpu::test {
namespace {

using namespace stasis::hip;

TEST(HipMemoryTest, AnAllocationOfNothingIsANullPointer) {
  CUdeviceptr ptr = 1;
  EXPECT_OK(hipMalloc(&ptr, 0));
  EXPECT_EQ(ptr, 0u);
  EXPECT_OK(hipFree(ptr));
  EXPECT_OK(hipHostFree(nullptr));
  EXPECT_OK(hipFreeAsync(0, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipMalloc(nullptr, 0));
}

TEST(HipMemoryTest, CopiesInEveryDirection) {
  const std::vector<char> data{'s', 't', 'a', 's', 'i', 's'};
  const CUdeviceptr a = Allocate(data.size()), b = Allocate(data.size());
  EXPECT_OK(hipMemcpy(Pointer(a), data.data(), data.size(), hipMemcpyHostToDevice));
  EXPECT_OK(hipMemcpy(Pointer(b), Pointer(a), data.size(), hipMemcpyDeviceToDevice));
  EXPECT_EQ(Read(b, data.size()), data);
  std::vector<char> back(data.size());
  EXPECT_OK(hipMemcpy(back.data(), Pointer(b), back.size(), hipMemcpyDefault));
  EXPECT_EQ(back, data);
  std::vector<char> again(data.size());
  EXPECT_OK(hipMemcpy(again.data(), back.data(), again.size(), hipMemcpyHostToHost));
  EXPECT_EQ(again, data);
  EXPECT_OK(hipMemcpyPeer(Pointer(a), 0, Pointer(b), 0, data.size()));
  EXPECT_CU(hipErrorInvalidMemcpyDirection,
            hipMemcpy(back.data(), Pointer(a), 1, hipMemcpyKind(5)));
  EXPECT_CU(hipErrorInvalidMemcpyDirection,
            hipMemcpyAsync(back.data(), Pointer(a), 1, hipMemcpyKind(-1), nullptr));
  EXPECT_OK(hipFree(a));
  EXPECT_OK(hipFree(b));
}

TEST(HipMemoryTest, CopiesAndFillsRectanglesAndBoxes) {
  void* ptr = nullptr;
  size_t pitch = 0;
  ASSERT_OK(hipMallocPitch(&ptr, &pitch, 3, 2));
  const char rows[] = {'a', 'b', 'c', 'd', 'e', 'f'};
  EXPECT_OK(hipMemset2D(ptr, pitch, 'x', 3, 2));
  EXPECT_OK(hipMemcpy2D(ptr, pitch, rows, 3, 2, 2, hipMemcpyHostToDevice));
  char back[6];
  EXPECT_OK(hipMemcpy2D(back, 3, ptr, pitch, 3, 2, hipMemcpyDeviceToHost));
  EXPECT_EQ(std::string(back, 6), "abxdex");
  hip_Memcpy2D copy{};
  copy.srcMemoryType = hipMemoryTypeDevice;
  copy.srcDevice = ptr;
  copy.srcPitch = pitch;
  copy.dstMemoryType = hipMemoryTypeHost;
  copy.dstHost = back;
  copy.dstPitch = 2;
  copy.WidthInBytes = 2;
  copy.Height = 2;
  EXPECT_OK(hipMemcpyParam2D(&copy));
  EXPECT_EQ(std::string(back, 4), "abde");
  EXPECT_OK(hipFree(CUdeviceptr(ptr)));

  hipPitchedPtr box{};
  ASSERT_OK(hipMalloc3D(&box, {4, 2, 2}));
  EXPECT_OK(hipMemset3D(box, 'y', {4, 2, 2}));
  char all[16];
  hipMemcpy3DParms out{};
  out.srcPtr = box;
  out.dstPtr = {all, 4, 4, 2};
  out.extent = {4, 2, 2};
  out.kind = hipMemcpyDeviceToHost;
  EXPECT_OK(hipMemcpy3D(&out));
  EXPECT_EQ(std::string(all, 16), std::string(16, 'y'));
  out.kind = hipMemcpyKind(9);
  EXPECT_CU(hipErrorInvalidMemcpyDirection, hipMemcpy3D(&out));
  HIP_MEMCPY3D same{};
  same.srcMemoryType = hipMemoryTypeHost;
  same.srcHost = rows;
  same.srcPitch = 3;
  same.srcHeight = 2;
  same.dstMemoryType = hipMemoryTypeDevice;
  same.dstDevice = box.ptr;
  same.dstPitch = box.pitch;
  same.dstHeight = 2;
  same.WidthInBytes = 3;
  same.Height = 2;
  same.Depth = 1;
  EXPECT_OK(hipDrvMemcpy3D(&same));
  out.kind = hipMemcpyDeviceToHost;
  EXPECT_OK(hipMemcpy3D(&out));
  EXPECT_EQ(std::string(all, 8), "abcydefy");
  EXPECT_OK(hipFree(CUdeviceptr(box.ptr)));
}

TEST(HipMemoryTest, PointersHaveHipsMemoryTypes) {
  const CUdeviceptr device = Allocate(64);
  CUdeviceptr managed = 0;
  void* host = nullptr;
  ASSERT_OK(hipMallocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  ASSERT_OK(hipHostMalloc(&host, 64, hipHostMallocCoherent | CU_MEMHOSTALLOC_PORTABLE));
  int local = 0;
  auto type = [](const void* ptr) {
    hipPointerAttribute_t attributes{};
    EXPECT_OK(hipPointerGetAttributes(&attributes, ptr));
    return attributes.type;
  };
  EXPECT_EQ(type(Pointer(device)), hipMemoryTypeDevice);
  EXPECT_EQ(type(Pointer(managed)), hipMemoryTypeManaged);
  EXPECT_EQ(type(host), hipMemoryTypeHost);
  EXPECT_EQ(type(&local), hipMemoryTypeUnregistered);
  int one = 0;
  EXPECT_OK(hipPointerGetAttribute(&one, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, managed));
  EXPECT_EQ(one, hipMemoryTypeManaged);
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  int ordinal = -1, many = -1;
  void* data[] = {&ordinal, &many};
  EXPECT_OK(hipDrvPointerGetAttributes(2, asked, data, managed));
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(many, hipMemoryTypeManaged);
  EXPECT_OK(hipFree(device));
  EXPECT_OK(hipFree(managed));
  EXPECT_OK(hipFreeHost(host));
}

TEST(HipMemoryTest, MemoryIsMappedExportedAndImported) {
  CUmemAllocationProp properties;
  memset(&properties, 0xff, sizeof(properties));  // HIP leaves the last bytes undefined
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.win32HandleMetaData = nullptr;
  properties.allocFlags.compressionType = 0;
  properties.allocFlags.gpuDirectRDMACapable = 0;
  properties.allocFlags.usage = 0;
  size_t bytes = 0;
  ASSERT_OK(hipMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  ASSERT_OK(hipMemCreate(&handle, bytes, &properties, 0));
  CUmemAllocationProp kept{};
  EXPECT_OK(hipMemGetAllocationPropertiesFromHandle(&kept, handle));
  for (unsigned char byte : kept.allocFlags.reserved) EXPECT_EQ(byte, 0);
  int file = -1;
  ASSERT_OK(
      hipMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_OK(
      hipMemImportFromShareableHandle(&imported, &file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(file);
  CUdeviceptr range = 0;
  ASSERT_OK(hipMemAddressReserve(&range, 2 * bytes, 0, 0, 0));
  ASSERT_OK(hipMemMap(range, bytes, 0, handle, 0));
  ASSERT_OK(hipMemMap(range + bytes, bytes, 0, imported, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_OK(hipMemSetAccess(range, 2 * bytes, &access, 1));
  EXPECT_OK(hipMemset(Pointer(range), 7, 16));
  EXPECT_EQ(Read(range + bytes, 16), std::vector<char>(16, 7));
  EXPECT_OK(hipMemUnmap(range, bytes));
  EXPECT_OK(hipMemUnmap(range + bytes, bytes));
  EXPECT_OK(hipMemRelease(handle));
  EXPECT_OK(hipMemRelease(imported));
  EXPECT_OK(hipMemAddressFree(range, 2 * bytes));
}

SOFTGPU_ROLE(hip_imports_by_value) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  int file = -1;
  MUST(hipMemCreate(&handle, 2 << 20, &properties, 0));
  MUST(hipMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  MUST(hipMemImportFromShareableHandle(&imported, Pointer(uint64_t(file)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return 0;
}

TEST(HipMemoryTest, SinceVersion71DescriptorsAreImportedByValue) {
  EXPECT_EQ(RunRole("hip_imports_by_value", {}, {.environment = {"SOFTGPU_HIP_VERSION=70100000"}}),
            0);
}

TEST(HipMemoryTest, PoolsServeMemoryInStreamOrder) {
  hipStream_t stream = nullptr;
  ASSERT_OK(hipStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr ptr = 0;
  ASSERT_OK(hipMallocAsync(&ptr, 1 << 20, stream));
  ASSERT_OK(hipMemsetAsync(Pointer(ptr), 3, 8, stream));
  ASSERT_OK(hipStreamSynchronize(stream));
  EXPECT_EQ(Read(ptr, 8), std::vector<char>(8, 3));
  EXPECT_OK(hipFreeAsync(ptr, stream));
  hipMemPool_t pool = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  ASSERT_OK(hipMemPoolCreate(&pool, &properties));
  ASSERT_OK(hipMallocFromPoolAsync(&ptr, 4096, pool, stream));
  EXPECT_OK(hipFreeAsync(ptr, stream));
  EXPECT_OK(hipStreamSynchronize(stream));
  EXPECT_OK(hipMemPoolDestroy(pool));
  EXPECT_OK(hipStreamDestroy(stream));
}

SOFTGPU_ROLE(hip_opens_a_handle) {
  CUipcMemHandle handle;
  const std::string& hex = arguments.at(0);
  for (size_t i = 0; i < sizeof(handle); ++i) {
    handle.reserved[i] = char(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  CUdeviceptr ptr = 0;
  MUST(hipIpcOpenMemHandle(&ptr, handle, 0));
  MUST(hipMemset(Pointer(ptr), 9, 8));
  MUST(hipDeviceSynchronize());
  MUST(hipIpcCloseMemHandle(ptr));
  return 0;
}

TEST(HipMemoryTest, ProcessesShareMemoryByHandles) {
  const CUdeviceptr ptr = Allocate(4096);
  CUipcMemHandle handle;
  ASSERT_OK(hipIpcGetMemHandle(&handle, ptr));
  std::string hex;
  for (char c : handle.reserved) {
    char byte[3];
    snprintf(byte, sizeof(byte), "%02x", static_cast<unsigned char>(c));
    hex += byte;
  }
  EXPECT_EQ(RunRole("hip_opens_a_handle", {hex}), 0);
  EXPECT_EQ(Read(ptr, 8), std::vector<char>(8, 9));
  EXPECT_OK(hipFree(ptr));
}

}  // namespace
}  // namespace softgpu::test
