// The driver's own functions, as the program would call them without the agent: real::cuX(…) for
// every line of driver_functions.def and every raw hook. They are looked up once, when the program
// first needs one.
#pragma once

#include <atomic>

#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "abi/cuda/driver_functions.h"

namespace stasis::agent {

using namespace stasis::cuda;  // NOLINT: the driver's types, used everywhere in the agent

// One number for each exported symbol.
enum Index : int {
#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) k_##symbol,
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments) \
  k_##symbol, k_##symbol##_ptsz,
#define STASIS_DRIVER_FN_PTDS(symbol, since, kind, parameters, arguments) \
  k_##symbol, k_##symbol##_ptds,
#include "abi/cuda/driver_functions.def"
#define STASIS_HOOK_RAW(symbol, count) k_##symbol,
#include "agent/cuda/hooks.def"
  kFunctionCount,
};

extern std::atomic<void*> g_real[kFunctionCount];

// Finds the driver if necessary. A function that the driver lacks returns CUDA_ERROR_NOT_FOUND.
void* Resolve(Index index);

inline void* Address(Index index) {
  void* address = g_real[index].load(std::memory_order_acquire);
  return __builtin_expect(address != nullptr, 1) ? address : Resolve(index);
}

// Finds the driver that the program has loaded, and all its functions. Returns false if none is
// loaded. Takes the loader's lock and no lock of the agent.
bool Bind();

// Returns the hook for `address`, which a look-up of `name` gave, or `address` itself if there is
// no hook. Decides by the address, and so works for any name and version.
void* Substitute(const char* name, void* address);
// Whether a function with this exported name (or base name) has a hook and reaches device memory.
bool IsVital(const char* name);

namespace real {

#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments)     \
  inline CUresult symbol parameters {                                    \
    return reinterpret_cast<fn::symbol*>(Address(k_##symbol)) arguments; \
  }
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments)       \
  STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments)                  \
  inline CUresult symbol##_ptsz parameters {                                    \
    return reinterpret_cast<fn::symbol*>(Address(k_##symbol##_ptsz)) arguments; \
  }
#define STASIS_DRIVER_FN_PTDS(symbol, since, kind, parameters, arguments)       \
  STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments)                  \
  inline CUresult symbol##_ptds parameters {                                    \
    return reinterpret_cast<fn::symbol*>(Address(k_##symbol##_ptds)) arguments; \
  }
#include "abi/cuda/driver_functions.def"

// Integer registers and stack words are handed on untouched, whatever their real width.
using Word = unsigned long long;
#define STASIS_P1 Word a
#define STASIS_P2 STASIS_P1, Word b
#define STASIS_P3 STASIS_P2, Word c
#define STASIS_P4 STASIS_P3, Word d
#define STASIS_P5 STASIS_P4, Word e
#define STASIS_P6 STASIS_P5, Word f
#define STASIS_P7 STASIS_P6, Word g
#define STASIS_P8 STASIS_P7, Word h
#define STASIS_P9 STASIS_P8, Word i
#define STASIS_A1 a
#define STASIS_A2 STASIS_A1, b
#define STASIS_A3 STASIS_A2, c
#define STASIS_A4 STASIS_A3, d
#define STASIS_A5 STASIS_A4, e
#define STASIS_A6 STASIS_A5, f
#define STASIS_A7 STASIS_A6, g
#define STASIS_A8 STASIS_A7, h
#define STASIS_A9 STASIS_A8, i
#define STASIS_HOOK_RAW(symbol, count)                                                            \
  inline CUresult symbol(STASIS_P##count) {                                                       \
    return reinterpret_cast<CUresult (*)(STASIS_P##count)>(Address(k_##symbol))(STASIS_A##count); \
  }
#include "agent/cuda/hooks.def"

}  // namespace real

// The functions behind the program's calls: the agent's if one of that name is declared here, else
// the driver's (a name declared in a namespace hides a name from a using directive).
namespace hook {
using namespace real;  // NOLINT
using real::Word;

// memory.cc
CUresult cuMemAlloc_v2(CUdeviceptr* ptr, size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height,
                            unsigned element_size);
CUresult cuMemFree_v2(CUdeviceptr ptr);
CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total);
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr ptr, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags);

// ipc.cc
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr ptr);
CUresult cuIpcOpenMemHandle(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr ptr);

// ipc_events.cc
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream);
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags);
CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags);
CUresult cuEventQuery(CUevent event);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags);
CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event);
CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle);
CUresult cuEventDestroy_v2(CUevent event);

// driver_memory.cc: counts memory that stays with the driver
CUresult cuMemAllocManaged(CUdeviceptr* ptr, size_t bytes, unsigned flags);
CUresult cuMemAllocHost_v2(void** pp, size_t bytes);
CUresult cuMemHostAlloc(void** pp, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void* p);
CUresult cuArrayCreate_v2(STASIS_P2);
CUresult cuArray3DCreate_v2(STASIS_P2);
CUresult cuMipmappedArrayCreate(STASIS_P3);

// pools.cc
CUresult cuMemAllocAsync(CUdeviceptr* ptr, size_t bytes, CUstream stream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* ptr, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, CUmemoryPool pool, CUstream s);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* ptr, size_t bytes, CUmemoryPool pool,
                                      CUstream s);
CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream);
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props);
CUresult cuMemPoolDestroy(CUmemoryPool handle);
CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep);
CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value);
CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value);
CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count);
CUresult cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool,
                                          CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags);

// pointer.cc
CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr);

// program_vmm.cc
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size);
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count);
CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr);
CUresult cuMulticastCreate(STASIS_P2);
CUresult cuMulticastBindMem(STASIS_P6);
CUresult cuMemMapArrayAsync(STASIS_P3);
CUresult cuMemMapArrayAsync_ptsz(STASIS_P3);

// contexts.cc
CUresult cuCtxCreate(STASIS_P3);
CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params, int count, unsigned flags,
                        CUdevice device);
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned flags,
                        CUdevice device);
CUresult cuCtxDestroy(STASIS_P1);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxDetach(CUcontext context);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(STASIS_P1);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(STASIS_P1);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);

// captures.cc
CUresult cuStreamBeginCapture(STASIS_P1);
CUresult cuStreamBeginCapture_ptsz(STASIS_P1);
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamBeginCaptureToGraph(STASIS_P6);
CUresult cuStreamBeginCaptureToGraph_ptsz(STASIS_P6);
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph);
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data);
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* data);
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                             unsigned flags);
CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void* data,
                                  unsigned flags);

}  // namespace hook

}  // namespace stasis::agent
