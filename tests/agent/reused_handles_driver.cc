// A libcuda.so.1 that always returns the same handle of each kind and the same address.
#include "reused_handles_driver.h"

#include <fcntl.h>
#include <string.h>

#include <utility>

#include "abi/cuda/driver_functions.h"

using namespace stasis::cuda;  // NOLINT

namespace {

ReusedHandlesDriver driver;

CUdeviceptr next_address = 0x700000000000;
CUmemGenericAllocationHandle next_handle = 1;
thread_local CUcontext current = nullptr;

template <class T>
T Only(unsigned long long number) {
  return reinterpret_cast<T>(number);
}

CUresult Returned() {
  if (auto* next = std::exchange(driver.after_return, nullptr)) next();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ReusedHandlesDriver* TheReusedHandlesDriver() {
  return &driver;
}

#define DRIVER extern "C" __attribute__((visibility("default"))) CUresult

DRIVER cuInit(unsigned) { return CUDA_SUCCESS; }

DRIVER cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
DRIVER cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice) {
  memset(uuid, 7, sizeof(*uuid));
  return CUDA_SUCCESS;
}
DRIVER cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 1;
  return CUDA_SUCCESS;
}

DRIVER cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice) {
  *context = current = Only<CUcontext>(0x100);
  return CUDA_SUCCESS;
}
DRIVER cuCtxDestroy_v2(CUcontext) {
  current = nullptr;
  return Returned();
}
DRIVER cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
DRIVER cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
DRIVER cuCtxPushCurrent_v2(CUcontext context) { return cuCtxSetCurrent(context); }
DRIVER cuCtxPopCurrent_v2(CUcontext* context) { return cuCtxGetCurrent(context); }
DRIVER cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
DRIVER cuCtxSynchronize() {
  ++driver.synchronized;
  return CUDA_SUCCESS;
}

DRIVER cuMemAlloc_v2(CUdeviceptr* address, size_t) {
  *address = kPlainAddress;
  return CUDA_SUCCESS;
}
DRIVER cuMemFree_v2(CUdeviceptr) { return Returned(); }

DRIVER cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                     CUmemAllocationGranularity_flags) {
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}
DRIVER cuMemCreate(CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                   unsigned long long) {
  *handle = next_handle++;
  return CUDA_SUCCESS;
}
DRIVER cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
DRIVER cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle,
                                    CUmemAllocationHandleType, unsigned long long) {
  *static_cast<int*>(shareable) = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return CUDA_SUCCESS;
}
DRIVER cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                           unsigned long long) {
  *address = next_address;
  next_address += bytes;
  return CUDA_SUCCESS;
}
DRIVER cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
DRIVER cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return CUDA_SUCCESS;
}
DRIVER cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
DRIVER cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
DRIVER cuMemGetAddressRange_v2(CUdeviceptr*, size_t*, CUdeviceptr) {
  return CUDA_ERROR_INVALID_VALUE;
}

DRIVER cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps*) {
  *pool = Only<CUmemoryPool>(0x200);
  return CUDA_SUCCESS;
}
DRIVER cuMemPoolDestroy(CUmemoryPool) {
  return driver.pools_stay ? CUDA_ERROR_INVALID_VALUE : Returned();
}
DRIVER cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void* value) {
  memset(value, 0, 4);  // the size of the smallest attribute
  return CUDA_SUCCESS;
}
DRIVER cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t, CUmemoryPool, CUstream) {
  *address = kPlainAddress;
  return CUDA_SUCCESS;
}

DRIVER cuStreamCreate(CUstream* stream, unsigned) {
  *stream = Only<CUstream>(0x300);
  return CUDA_SUCCESS;
}
DRIVER cuStreamDestroy_v2(CUstream) { return Returned(); }
DRIVER cuStreamGetCtx(CUstream, CUcontext* context) { return cuCtxGetCurrent(context); }
DRIVER cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode) { return CUDA_SUCCESS; }
