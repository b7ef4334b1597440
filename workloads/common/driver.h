// The driver API. Workloads call it directly, like any program that links libcuda.so.1. The short
// names mean the same versions as in cuda.h.
//
// With WORKLOADS_HIP the same source becomes a program of the HIP runtime, which links
// libamdhip64.so.6: each name then means the function of HIP with the same binary interface
// (abi/hip/functions.def).
#pragma once

#if defined(WORKLOADS_HIP)

#include "abi/hip/functions.h"

namespace workloads {
using namespace stasis::hip;  // NOLINT: every name in it begins with cu, CU, hip or HIP

// Converts a descriptor to the handle argument that cuMemImportFromShareableHandle expects. With
// early versions of HIP this is a pointer to `fd`.
inline void* ForImport(const int& fd) {
  int version = 0;
  (void)hipRuntimeGetVersion(&version);
  return version < kFirstVersionWithDescriptorsByValue ? const_cast<int*>(&fd)
                                                       : reinterpret_cast<void*>(intptr_t{fd});
}
}  // namespace workloads

#define cuCtxCreate hipCtxCreate
#define cuCtxDestroy hipCtxDestroy
#define cuCtxEnablePeerAccess hipCtxEnablePeerAccess
#define cuCtxSetCurrent hipCtxSetCurrent
#define cuCtxSynchronize hipDeviceSynchronize
#define cuDeviceGet hipDeviceGet
#define cuDevicePrimaryCtxRelease hipDevicePrimaryCtxRelease
#define cuDevicePrimaryCtxRetain hipDevicePrimaryCtxRetain
#define cuEventCreate hipEventCreateWithFlags
#define cuEventDestroy hipEventDestroy
#define cuEventQuery hipEventQuery
#define cuEventRecord hipEventRecord
#define cuEventSynchronize hipEventSynchronize
#define cuGetErrorName hipDrvGetErrorName
#define cuInit hipInit
#define cuIpcCloseMemHandle hipIpcCloseMemHandle
#define cuIpcGetMemHandle hipIpcGetMemHandle
#define cuIpcOpenMemHandle hipIpcOpenMemHandle
#define cuLaunchHostFunc hipLaunchHostFunc
#define cuLaunchKernel hipModuleLaunchKernel
#define cuMemAddressFree hipMemAddressFree
#define cuMemAddressReserve hipMemAddressReserve
#define cuMemAlloc hipMalloc
#define cuMemAllocAsync hipMallocAsync
#define cuMemAllocFromPoolAsync hipMallocFromPoolAsync
#define cuMemAllocHost hipMallocHost
#define cuMemAllocManaged hipMallocManaged
#define cuMemCreate hipMemCreate
#define cuMemExportToShareableHandle hipMemExportToShareableHandle
#define cuMemFree hipFree
#define cuMemFreeAsync hipFreeAsync
#define cuMemFreeHost hipHostFree
#define cuMemGetAccess hipMemGetAccess
#define cuMemGetAddressRange_v2 hipMemGetAddressRange
#define cuMemGetAllocationGranularity hipMemGetAllocationGranularity
#define cuMemGetInfo hipMemGetInfo
#define cuMemHostAlloc hipHostMalloc
#define cuMemHostGetDevicePointer hipHostGetDevicePointer
#define cuMemHostRegister hipHostRegister
#define cuMemHostUnregister hipHostUnregister
#define cuMemImportFromShareableHandle hipMemImportFromShareableHandle
#define cuMemMap hipMemMap
#define cuMemPoolCreate hipMemPoolCreate
#define cuMemPoolDestroy hipMemPoolDestroy
#define cuMemPoolSetAttribute hipMemPoolSetAttribute
#define cuMemRelease hipMemRelease
#define cuMemSetAccess hipMemSetAccess
#define cuMemUnmap hipMemUnmap
#define cuMemcpyDtoD hipMemcpyDtoD
#define cuMemcpyDtoDAsync hipMemcpyDtoDAsync
#define cuMemcpyDtoH hipMemcpyDtoH
#define cuMemcpyDtoHAsync hipMemcpyDtoHAsync
#define cuMemcpyHtoD hipMemcpyHtoD
#define cuMemcpyHtoDAsync hipMemcpyHtoDAsync
#define cuMemsetD32Async hipMemsetD32Async
#define cuModuleGetFunction hipModuleGetFunction
#define cuModuleGetGlobal hipModuleGetGlobal
#define cuModuleLoad hipModuleLoad
#define cuModuleLoadData hipModuleLoadData
#define cuModuleLoadDataEx hipModuleLoadDataEx
#define cuModuleUnload hipModuleUnload
#define cuPointerGetAttribute hipPointerGetAttribute
#define cuPointerGetAttributes hipDrvPointerGetAttributes
#define cuStreamCreate hipStreamCreateWithFlags
#define cuStreamDestroy hipStreamDestroy
#define cuStreamQuery hipStreamQuery
#define cuStreamSynchronize hipStreamSynchronize
#define cuStreamWaitEvent hipStreamWaitEvent

#else

#include "abi/cuda/driver_functions.h"

namespace workloads {
using namespace stasis::cuda;  // NOLINT: every name in it begins with cu or CU

// Converts a descriptor to the handle argument that cuMemImportFromShareableHandle expects.
inline void* ForImport(const int& fd) { return reinterpret_cast<void*>(intptr_t{fd}); }
}  // namespace workloads

#define cuCtxCreate cuCtxCreate_v2
#define cuCtxDestroy cuCtxDestroy_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuEventDestroy cuEventDestroy_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemAllocHost cuMemAllocHost_v2
#define cuMemFree cuMemFree_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
#define cuMemHostRegister cuMemHostRegister_v2
#define cuMemcpyDtoD cuMemcpyDtoD_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuModuleGetGlobal cuModuleGetGlobal_v2
#define cuStreamDestroy cuStreamDestroy_v2

#endif
