#include <string.h>

#include <atomic>

#include "testing.h"

namespace softgpu::test {
namespace {

template <class T>
std::string Hex(const T& handle) {
  std::string text;
  char pair[3];
  for (unsigned char byte : handle.reserved) {
    snprintf(pair, sizeof(pair), "%02x", byte);
    text += pair;
  }
  return text;
}

template <class T>
T Unhex(const std::string& text) {
  T handle{};
  for (size_t i = 0; i < sizeof(handle.reserved); ++i) {
    handle.reserved[i] = char(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

SOFTGPU_ROLE(open_memory) {
  MUST(cuInit(0));
  CUcontext context;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  CUdeviceptr ptr = 0;
  CUresult opened = cuIpcOpenMemHandle_v2(&ptr, Unhex<CUipcMemHandle>(arguments[0]),
                                          CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (opened != CUDA_SUCCESS) {
    Say(Name(opened));
    return 0;
  }
  int seen = 0;
  MUST(cuMemcpyDtoH_v2(&seen, ptr + 4, 4));
  MUST(cuMemsetD32_v2(ptr, 99, 1));
  MUST(cuCtxSynchronize());
  CUipcMemHandle again;
  CUresult second = cuIpcGetMemHandle(&again, ptr);
  MUST(cuIpcCloseMemHandle(ptr));
  Say(std::to_string(seen) + " " + Name(second));
  return 0;
}

using IpcTest = WithContext;

TEST_F(IpcTest, MemoryOpensInAnotherProcess) {
  CUdeviceptr ptr = 0;
  CUipcMemHandle handle;
  ASSERT_OK(cuMemAlloc_v2(&ptr, 1 << 20));
  ASSERT_OK(cuMemsetD32_v2(ptr, 42, 1 << 18));
  ASSERT_OK(cuCtxSynchronize());
  ASSERT_OK(cuIpcGetMemHandle(&handle, ptr));
  EXPECT_EQ(Child("open_memory", {Hex(handle)}).Hear(), "42 CUDA_ERROR_INVALID_VALUE");
  int seen = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&seen, ptr, 4));
  EXPECT_EQ(seen, 99);
  CUdeviceptr own = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&own, handle, 1));
  ASSERT_OK(cuMemFree_v2(ptr));
  EXPECT_EQ(Child("open_memory", {Hex(handle)}).Hear(), "CUDA_ERROR_INVALID_VALUE") << "freed";
}

TEST_F(IpcTest, VirtualMemoryHasNoLegacyHandle) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle memory = 0;
  CUdeviceptr at = 0, pooled = 0;
  CUipcMemHandle handle;
  ASSERT_OK(cuMemCreate(&memory, 2 << 20, &prop, 0));
  ASSERT_OK(cuMemAddressReserve(&at, 2 << 20, 0, 0, 0));
  ASSERT_OK(cuMemMap(at, 2 << 20, 0, memory, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, at));
  ASSERT_OK(cuMemUnmap(at, 2 << 20));
  ASSERT_OK(cuMemRelease(memory));
  ASSERT_OK(cuMemAddressFree(at, 2 << 20));
  ASSERT_OK(cuMemAllocAsync(&pooled, 4096, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, pooled));
  ASSERT_OK(cuMemFreeAsync(pooled, nullptr));
}

SOFTGPU_ROLE(wait_event) {
  MUST(cuInit(0));
  CUcontext context;
  CUevent event = nullptr;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  MUST(cuIpcOpenEventHandle(&event, Unhex<CUipcEventHandle>(arguments[0])));
  Say(Name(cuEventQuery(event)));
  MUST(cuStreamWaitEvent(nullptr, event, 0));
  MUST(cuStreamSynchronize(nullptr));
  Say(Name(cuEventQuery(event)));
  return 0;
}

TEST_F(IpcTest, EventsOrderTwoProcesses) {
  CUevent event = nullptr, ordinary = nullptr;
  CUipcEventHandle handle;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, CU_EVENT_INTERPROCESS));
  ASSERT_OK(cuEventCreate(&ordinary, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&handle, ordinary));
  ASSERT_OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  ASSERT_OK(cuIpcGetEventHandle(&handle, event));
  static std::atomic<bool> open{false};
  ASSERT_OK(cuLaunchHostFunc(
      nullptr,
      [](void*) {
        while (!open) sched_yield();
      },
      nullptr));
  ASSERT_OK(cuEventRecord(event, nullptr));
  Child waiting("wait_event", {Hex(handle)});
  EXPECT_EQ(waiting.Hear(), "CUDA_ERROR_NOT_READY");
  open = true;
  EXPECT_EQ(waiting.Hear(), "CUDA_SUCCESS");
  ASSERT_OK(cuEventDestroy_v2(event));
  ASSERT_OK(cuEventDestroy_v2(ordinary));
}

SOFTGPU_ROLE(opens_and_stays) {
  MUST(cuInit(0));
  CUcontext context;
  CUdeviceptr ptr = 0;
  MUST(cuCtxCreate_v2(&context, 0, 0));
  MUST(cuIpcOpenMemHandle_v2(&ptr, Unhex<CUipcMemHandle>(arguments[0]), 0));
  Say("open");
  Hear();
  return 0;
}

TEST_F(IpcTest, ARestoreWithAnOpenHandleFails) {
  CUdeviceptr ptr = 0;
  CUipcMemHandle handle;
  CUprocessState state{};
  ASSERT_OK(cuMemAlloc_v2(&ptr, 4096));
  ASSERT_OK(cuIpcGetMemHandle(&handle, ptr));
  Child importer("opens_and_stays", {Hex(handle)});
  ASSERT_EQ(importer.Hear(), "open");
  ASSERT_OK(cuCheckpointProcessLock(importer.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessCheckpoint(importer.pid(), nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessRestore(importer.pid(), nullptr));
  ASSERT_OK(cuCheckpointProcessGetState(importer.pid(), &state));
  EXPECT_EQ(state, CU_PROCESS_STATE_FAILED);
  ASSERT_OK(cuMemFree_v2(ptr));
}

}  // namespace
}  // namespace softgpu::test
