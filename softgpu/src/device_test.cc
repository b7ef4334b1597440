#include <string.h>

#include "testing.h"

namespace softgpu::test {
namespace {

SOFTGPU_ROLE(list_devices) {
  CUresult r = cuInit(0);
  if (r != CUDA_SUCCESS) {
    Say(Name(r));
    return 0;
  }
  int count = 0;
  MUST(cuDeviceGetCount(&count));
  std::string line;
  for (int i = 0; i < count; ++i) {
    CUuuid uuid;
    MUST(cuDeviceGetUuid_v2(&uuid, i));
    line += (i > 0 ? " " : "") + std::to_string(int(uuid.bytes[15]));
  }
  Say(line);
  return 0;
}

std::string Visible(const std::string& value) {
  return Child("list_devices", {}, {.environment = {"CUDA_VISIBLE_DEVICES=" + value}}).Hear();
}

TEST(DeviceTest, VisibleDevicesByIndexAndName) {
  EXPECT_EQ(Child("list_devices").Hear(), "0 1");
  EXPECT_EQ(Visible("1"), "1");
  EXPECT_EQ(Visible("1,0"), "1 0");
  EXPECT_EQ(Visible("0,7,1"), "0") << "the first unknown one ends the list";
  EXPECT_EQ(Visible("GPU-536f6674-4750-5500-0000-000000000001"), "1");
  EXPECT_EQ(Visible(" 1 , 0"), "1 0");
  EXPECT_EQ(Visible("1gpu"), "1");
  EXPECT_EQ(Visible("0,GPU-536f6674-4750-5500-0000-000000000001"), "0") << "not both kinds";
  EXPECT_EQ(Visible("0,0"), "CUDA_ERROR_INVALID_DEVICE");
  EXPECT_EQ(Visible("GPU-"), "CUDA_ERROR_NO_DEVICE") << "two GPUs start like this";
  EXPECT_EQ(Visible(""), "CUDA_ERROR_NO_DEVICE");
  EXPECT_EQ(Visible("-1"), "CUDA_ERROR_NO_DEVICE");
}

SOFTGPU_ROLE(driver_version) {
  int version = 0;
  void* found = nullptr;
  MUST(cuDriverGetVersion(&version));
  CUresult newer = cuGetProcAddress("cuCheckpointProcessLock", &found, 12080, 0);
  Say(std::to_string(version) + " " + Name(newer));
  return 0;
}

TEST(DeviceTest, OlderDriverByVariable) {
  auto of = [](const char* version) {
    std::string setting = std::string("SOFTGPU_CUDA_VERSION=") + version;
    return Child("driver_version", {}, {.environment = {setting}}).Hear();
  };
  EXPECT_EQ(Child("driver_version").Hear(), "13000 CUDA_SUCCESS");
  EXPECT_EQ(of("12080"), "12080 CUDA_SUCCESS");
  EXPECT_EQ(of("12040"), "12040 CUDA_ERROR_INVALID_VALUE");
  EXPECT_EQ(of("99000"), "13000 CUDA_SUCCESS");
}

TEST(DeviceTest, NothingWorksBeforeInit) { EXPECT_EQ(RunRole("before_init"), 0); }

SOFTGPU_ROLE(before_init) {
  int count = 0;
  CUcontext context = nullptr;
  if (cuDeviceGetCount(&count) != CUDA_ERROR_NOT_INITIALIZED) return 1;
  if (cuCtxGetCurrent(&context) != CUDA_ERROR_NOT_INITIALIZED) return 2;
  if (cuDriverGetVersion(&count) != CUDA_SUCCESS || count != 13000) return 3;
  if (cuInit(1) != CUDA_ERROR_INVALID_VALUE) return 4;
  return cuInit(0) == CUDA_SUCCESS && cuInit(0) == CUDA_SUCCESS ? 0 : 5;
}

using ContextTest = WithContext;

TEST_F(ContextTest, AttributesNamesAndIds) {
  char name[100], bus[20];
  int value = 0, back = -1;
  size_t total = 0;
  ASSERT_OK(cuDeviceGetName(name, sizeof(name), 0));
  EXPECT_STREQ(name, "Software GPU (not a performance result)");
  ASSERT_OK(cuDeviceTotalMem_v2(&total, 0));
  EXPECT_EQ(total, size_t{256} << 20);
  ASSERT_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  EXPECT_EQ(value, 9);
  ASSERT_OK(cuDeviceGetPCIBusId(bus, sizeof(bus), 1));
  ASSERT_OK(cuDeviceGetByPCIBusId(&back, bus));
  EXPECT_EQ(back, 1);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(name, sizeof(name), 2));
}

TEST_F(ContextTest, TheStackOfCurrentContexts) {
  CUcontext second = nullptr, seen = nullptr;
  CUdevice device = -1;
  ASSERT_OK(cuCtxCreate_v2(&second, 0, 1));
  ASSERT_OK(cuCtxGetCurrent(&seen));
  EXPECT_EQ(seen, second);
  ASSERT_OK(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 1);
  ASSERT_OK(cuCtxPopCurrent_v2(&seen));
  EXPECT_EQ(seen, second);
  ASSERT_OK(cuCtxGetCurrent(&seen));
  EXPECT_EQ(seen, context_);
  ASSERT_OK(cuCtxDestroy_v2(second));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent_v2(second));
}

TEST_F(ContextTest, PrimaryContextsAreCounted) {
  CUcontext primary = nullptr, same = nullptr;
  unsigned flags = 0;
  int active = 1;
  ASSERT_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 0);
  ASSERT_OK(cuDevicePrimaryCtxRetain(&primary, 1));
  ASSERT_OK(cuDevicePrimaryCtxRetain(&same, 1));
  EXPECT_EQ(primary, same);
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(primary));
  ASSERT_OK(cuDevicePrimaryCtxRelease_v2(1));
  ASSERT_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 1);
  ASSERT_OK(cuDevicePrimaryCtxRelease_v2(1));
  ASSERT_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 0);
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(1));
}

TEST_F(ContextTest, PeersAccessEachOthersMemory) {
  CUcontext other = nullptr;
  int can = 0;
  CUdeviceptr here = 0, there = 0;
  ASSERT_OK(cuDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  ASSERT_OK(cuDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(can, 0);
  ASSERT_OK(cuMemAlloc_v2(&here, 4096));
  ASSERT_OK(cuMemsetD8_v2(here, 9, 4096));
  ASSERT_OK(cuCtxSynchronize());
  ASSERT_OK(cuCtxCreate_v2(&other, 0, 1));
  ASSERT_OK(cuCtxEnablePeerAccess(context_, 0));
  EXPECT_CU(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(context_, 0));
  ASSERT_OK(cuMemAlloc_v2(&there, 4096));
  ASSERT_OK(cuMemcpyPeer(there, other, here, context_, 4096));
  unsigned char seen = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&seen, there + 4095, 1));
  EXPECT_EQ(seen, 9);
  ASSERT_OK(cuCtxDisablePeerAccess(context_));
  EXPECT_CU(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context_));
  ASSERT_OK(cuCtxDestroy_v2(other));
  ASSERT_OK(cuMemFree_v2(here));
}

}  // namespace
}  // namespace softgpu::test
