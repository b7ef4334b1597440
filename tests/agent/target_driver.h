// How the program of target.cc calls the driver, and its handling of failed calls. With TARGET_HIP
// the driver's functions are HIP's.
#pragma once

#include <string>

#include "abi/cuda/driver_functions.h"

namespace target {

using namespace stasis::cuda;  // NOLINT: this program uses that API throughout

// symbol; the name and version for cuGetProcAddress
#define FUNCTIONS(X)                                                                  \
  X(cuInit, "cuInit")                                                                 \
  X(cuDeviceGetCount, "cuDeviceGetCount")                                             \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                             \
  X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset")                            \
  X(cuCtxCreate_v2, "cuCtxCreate")                                                    \
  X(cuCtxDestroy_v2, "cuCtxDestroy")                                                  \
  X(cuCtxSetCurrent, "cuCtxSetCurrent")                                               \
  X(cuCtxSynchronize, "cuCtxSynchronize")                                             \
  X(cuCtxGetLimit, "cuCtxGetLimit")                                                   \
  X(cuCtxSetLimit, "cuCtxSetLimit")                                                   \
  X(cuMemAlloc_v2, "cuMemAlloc")                                                      \
  X(cuMemFree_v2, "cuMemFree")                                                        \
  X(cuMemGetInfo_v2, "cuMemGetInfo")                                                  \
  X(cuMemGetAddressRange_v2, "cuMemGetAddressRange")                                  \
  X(cuPointerGetAttribute, "cuPointerGetAttribute")                                   \
  X(cuPointerGetAttributes, "cuPointerGetAttributes")                                 \
  X(cuMemcpyHtoD_v2, "cuMemcpyHtoD")                                                  \
  X(cuMemcpyDtoH_v2, "cuMemcpyDtoH")                                                  \
  X(cuMemsetD8_v2, "cuMemsetD8")                                                      \
  X(cuStreamCreate, "cuStreamCreate")                                                 \
  X(cuStreamSynchronize, "cuStreamSynchronize")                                       \
  X(cuLaunchHostFunc, "cuLaunchHostFunc")                                             \
  X(cuStreamBeginCapture_v2, "cuStreamBeginCapture")                                  \
  X(cuStreamEndCapture, "cuStreamEndCapture")                                         \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle")                                           \
  X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle")                                      \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle")                                       \
  X(cuIpcGetEventHandle, "cuIpcGetEventHandle")                                       \
  X(cuIpcOpenEventHandle, "cuIpcOpenEventHandle")                                     \
  X(cuEventCreate, "cuEventCreate")                                                   \
  X(cuEventDestroy_v2, "cuEventDestroy")                                              \
  X(cuEventRecord, "cuEventRecord")                                                   \
  X(cuEventQuery, "cuEventQuery")                                                     \
  X(cuEventSynchronize, "cuEventSynchronize")                                         \
  X(cuStreamWaitEvent, "cuStreamWaitEvent")                                           \
  X(cuMemsetD8Async, "cuMemsetD8Async")                                               \
  X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync")                                        \
  X(cuMemAllocAsync, "cuMemAllocAsync")                                               \
  X(cuMemFreeAsync, "cuMemFreeAsync")                                                 \
  X(cuMemPoolCreate, "cuMemPoolCreate")                                               \
  X(cuMemPoolDestroy, "cuMemPoolDestroy")                                             \
  X(cuMemPoolTrimTo, "cuMemPoolTrimTo")                                               \
  X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute")                                   \
  X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute")                                   \
  X(cuMemPoolSetAccess, "cuMemPoolSetAccess")                                         \
  X(cuMemPoolGetAccess, "cuMemPoolGetAccess")                                         \
  X(cuDeviceGetMemPool, "cuDeviceGetMemPool")                                         \
  X(cuDeviceSetMemPool, "cuDeviceSetMemPool")                                         \
  X(cuMemAddressReserve, "cuMemAddressReserve")                                       \
  X(cuMemCreate, "cuMemCreate")                                                       \
  X(cuMemMap, "cuMemMap")                                                             \
  X(cuMemUnmap, "cuMemUnmap")                                                         \
  X(cuMemRelease, "cuMemRelease")                                                     \
  X(cuMemSetAccess, "cuMemSetAccess")                                                 \
  X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle")                       \
  X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle") \
  X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle")                     \
  X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle")

struct Api {
#define FIELD(symbol, name) decltype(&::stasis::cuda::symbol) symbol = nullptr;
  FUNCTIONS(FIELD)
#undef FIELD
};
extern Api api;

[[noreturn]] void Die(const char* what, int code);
void Must(CUresult r, const char* what);
#define MUST(call) Must(api.call, #call)

// Fills `api`: "direct", "dlsym", "lookup" (cuGetProcAddress) or "cudart". HIP supports only the
// first two.
void UseLookup(const std::string& way);

}  // namespace target
