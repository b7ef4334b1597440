// The HIP runtime as a whole: its start, errors, look-ups, devices, and the boundary to CUDA.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <string.h>

#include <string>
#include <vector>

#include "hip.h"

namespace softgpu::test {
namespace {

using namespace stasis::hip;

// Starts without a call of hipInit and without a context.
SOFTGPU_ROLE(hip_first_call_allocates) {
  CUdeviceptr ptr = 0;
  int count = 0;
  MUST(hipMalloc(&ptr, 4096));
  MUST(hipGetDeviceCount(&count));
  return ptr != 0 && count == 2 ? 0 : 1;
}

TEST(HipRuntimeTest, TheFirstCallInitialisesTheRuntime) {
  EXPECT_EQ(RunRole("hip_first_call_allocates"), 0);
}

TEST(HipRuntimeTest, TheLastErrorStaysUntilItIsRead) {
  (void)hipGetLastError();
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipMalloc(nullptr, 1));
  EXPECT_OK(hipDeviceSynchronize());
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipPeekAtLastError());
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipGetLastError());
  EXPECT_OK(hipGetLastError());
}

TEST(HipRuntimeTest, ErrorsHaveHipsNames) {
  EXPECT_STREQ(hipGetErrorName(CUDA_ERROR_OUT_OF_MEMORY), "hipErrorOutOfMemory");
  EXPECT_STREQ(hipGetErrorString(CUDA_ERROR_OUT_OF_MEMORY), "out of memory");
  const char* name = nullptr;
  EXPECT_OK(hipDrvGetErrorName(hipErrorInvalidSymbol, &name));
  EXPECT_STREQ(name, "hipErrorInvalidSymbol");
  EXPECT_OK(hipDrvGetErrorString(hipErrorInvalidSymbol, &name));
  EXPECT_STREQ(name, "invalid device symbol");
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipDrvGetErrorName(hipError_t(12345), &name));
  EXPECT_STREQ(hipGetErrorName(hipError_t(12345)), "hipErrorUnknown");
}

TEST(HipRuntimeTest, EveryFunctionOfTheTableIsFoundByItsName) {
  const std::vector<const char*> names = {
#define STASIS_HIP_SAME(symbol, driver) #symbol,
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) #symbol,
#define STASIS_HIP_OTHER(symbol, kind, count) #symbol,
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) #symbol,
#include "abi/hip/functions.def"
  };
  for (const char* name : names) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    EXPECT_OK(hipGetProcAddress(name, &found, 50700000, 0, &status)) << name;
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    // A sanitized test contains the driver and exports nothing.
    if (!SOFTGPU_SANITIZED) {
      EXPECT_EQ(found, dlsym(RTLD_DEFAULT, name)) << name;
    }
  }
}

TEST(HipRuntimeTest, NamesAreFoundByVersionAndStream) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_OK(hipGetProcAddress("hipGetDeviceProperties", &found, 60400000, 0, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&hipGetDevicePropertiesR0600));
  EXPECT_OK(hipGetProcAddress("hipMemcpy", &found, 60400000,
                              CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&hipMemcpy_spt));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            hipGetProcAddress("hipNothing", &found, 60400000, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(found, nullptr);
}

TEST(HipRuntimeTest, DevicesHavePropertiesAndAttributes) {
  hipDeviceProp_tR0600 now{};
  hipDeviceProp_tR0000 before{};
  ASSERT_OK(hipGetDevicePropertiesR0600(&now, 1));
  ASSERT_OK(hipGetDeviceProperties(&before, 1));
  EXPECT_EQ(now.totalGlobalMem, 256u << 20);
  EXPECT_EQ(before.totalGlobalMem, 256u << 20);
  EXPECT_STREQ(now.gcnArchName, "softgpu");
  EXPECT_STREQ(before.gcnArchName, "softgpu");
  CUuuid uuid;
  EXPECT_OK(hipDeviceGetUuid(&uuid, 1));
  EXPECT_EQ(memcmp(uuid.bytes, now.uuid.bytes, sizeof(uuid.bytes)), 0);
  int value = 0;
  EXPECT_OK(hipDeviceGetAttribute(&value, hipDeviceAttributeMaxThreadsPerBlock, 1));
  EXPECT_EQ(value, now.maxThreadsPerBlock);
  EXPECT_OK(hipDeviceGetP2PAttribute(&value, hipDevP2PAttrAccessSupported, 0, 1));
  EXPECT_EQ(value, 1);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, hipGetDevicePropertiesR0600(&now, 2));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE,
            hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 2));
}

SOFTGPU_ROLE(hip_uses_the_second_device) {
  int device = -1;
  MUST(hipSetDevice(1));
  MUST(hipGetDevice(&device));
  CUdeviceptr ptr = 0;
  MUST(hipMalloc(&ptr, 4096));
  hipPointerAttribute_t attributes{};
  MUST(hipPointerGetAttributes(&attributes, Pointer(ptr)));
  if (device != 1 || attributes.device != 1) return 1;
  if (hipSetDevice(2) != CUDA_ERROR_INVALID_DEVICE) return 2;
  MUST(hipDeviceEnablePeerAccess(0, 0));
  if (hipDeviceEnablePeerAccess(0, 0) != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return 3;
  MUST(hipDeviceDisablePeerAccess(0));
  MUST(hipDeviceReset());
  // The memory is gone, and the next call creates a new context.
  if (hipFree(ptr) != CUDA_ERROR_INVALID_VALUE) return 4;
  MUST(hipMalloc(&ptr, 4096));
  MUST(hipGetDevice(&device));
  return device == 1 ? 0 : 5;
}

TEST(HipRuntimeTest, AThreadHasACurrentDevice) {
  EXPECT_EQ(RunRole("hip_uses_the_second_device"), 0);
}

SOFTGPU_ROLE(hip_counts_devices) {
  int count = 0;
  MUST(hipGetDeviceCount(&count));
  return count;
}

TEST(HipRuntimeTest, VisibleDevicesAreThoseOfHip) {
  EXPECT_EQ(RunRole("hip_counts_devices"), 2);
  EXPECT_EQ(RunRole("hip_counts_devices", {}, {.environment = {"HIP_VISIBLE_DEVICES=1"}}), 1);
  EXPECT_EQ(RunRole("hip_counts_devices", {}, {.environment = {"CUDA_VISIBLE_DEVICES=1"}}), 1);
  EXPECT_EQ(RunRole("hip_counts_devices", {},
                    {.environment = {"CUDA_VISIBLE_DEVICES=0", "HIP_VISIBLE_DEVICES=0,1"}}),
            2);
}

TEST(HipRuntimeTest, WhatIsMissingIsNotSupported) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_OK(hipGetProcAddress("hipMallocArray", &found, 50700000, 0, &status));
  ASSERT_NE(found, nullptr);
#if !SOFTGPU_SANITIZED  // the sanitizer rejects calls by a function type other than the
                        // definition's
  auto* array =
      reinterpret_cast<hipError_t (*)(void*, const void*, size_t, size_t, unsigned)>(found);
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, array(nullptr, nullptr, 0, 0, 0));
#endif
  hipArray_t other = nullptr;
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, hipMalloc3DArray(&other, nullptr, {1, 1, 1}, 0));
}

TEST(HipRuntimeTest, DeviceFilesShowThatAProgramUsesHip) {
  const CUdeviceptr ptr = Allocate(4096);
  EXPECT_NE(Contents("/proc/self/maps").find(" /softgpu-hip/0/#"), std::string::npos);
  EXPECT_EQ(Contents("/proc/self/maps").find(" /softgpu/"), std::string::npos);
  EXPECT_OK(hipFree(ptr));
}

SOFTGPU_ROLE(hip_allocates) {
  CUdeviceptr ptr = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  Say(std::to_string(hipMalloc(&ptr, 4096)));
  Say(std::to_string(hipMemCreate(&handle, 0, &properties, 0)));
  return 0;
}

TEST(HipRuntimeTest, FaultsAreGivenByHipsNames) {
  Child child("hip_allocates", {},
              {.environment = {"SOFTGPU_FAULT=hipMalloc=fail(2),hipMemCreate=fail(719)"}});
  EXPECT_EQ(child.Hear(), "2");
  EXPECT_EQ(child.Hear(), "719");
  EXPECT_EQ(child.Wait(), 0);
}

#if !SOFTGPU_SANITIZED
template <class F>
F CudaFunction(const char* name) {
  void* library = dlopen(SOFTGPU_CUDA, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library, name));
}

TEST(HipRuntimeTest, TheLibraryExportsNothingOfCuda) {
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuInit"), nullptr);
  EXPECT_NE(dlsym(RTLD_DEFAULT, "softgpuVersion"), nullptr);
}

SOFTGPU_ROLE(hip_then_cuda) {
  MUST(hipInit(0));
  auto init = CudaFunction<CUresult (*)(unsigned)>("cuInit");
  return init == nullptr ? 1 : int(init(0));
}

TEST(HipRuntimeTest, AProcessUsesOnlyOneFace) {
  EXPECT_EQ(RunRole("hip_then_cuda") % 256, CUDA_ERROR_OPERATING_SYSTEM % 256);
}

SOFTGPU_ROLE(hip_waits) {
  MUST(hipInit(0));
  Say("ready");
  Hear();
  return 0;
}

SOFTGPU_ROLE(cuda_asks_for_the_state) {
  auto init = CudaFunction<CUresult (*)(unsigned)>("cuInit");
  auto state = CudaFunction<CUresult (*)(int, int*)>("cuCheckpointProcessGetState");
  if (init == nullptr || init(0) != CUDA_SUCCESS) return 1;
  int value = 0;
  return state(std::stoi(arguments.at(0)), &value) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 2;
}

TEST(HipRuntimeTest, AHipProcessHasNoCheckpoint) {
  Child child("hip_waits");
  ASSERT_EQ(child.Hear(), "ready");
  EXPECT_EQ(RunRole("cuda_asks_for_the_state", {std::to_string(child.pid())}), 0);
  child.Say("go");
  EXPECT_EQ(child.Wait(), 0);
}
#endif

}  // namespace
}  // namespace softgpu::test
