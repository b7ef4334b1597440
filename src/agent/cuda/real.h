// The driver's own functions, as the program would call them without the agent: real::cuX(…) for
// every line of driver_functions.def and every raw hook. They are looked up once, when the program
// first needs one. In a process that uses HIP they are HIP's functions (abi/hip/as_driver.h).
#pragma once

#include <atomic>

#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "abi/cuda/driver_functions.h"

// The start of the definition of a function that the program calls in place of the driver's.
#define STASIS_EXPORT extern "C" __attribute__((visibility("default")))

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
  kFirstHip,  // the number of the first function of HIP
  kBeforeHip = kFirstHip - 1,
#define STASIS_HIP_SYMBOL(symbol, kind) k_##symbol,
#include "agent/hip/symbols.def"
  kFunctionCount,
};

extern std::atomic<void*> g_real[kFunctionCount];

// Returns the address of the function; finds the driver first if necessary. If the driver lacks the
// function, returns a stub whose result is CUDA_ERROR_NOT_FOUND.
void* Resolve(Index index);

inline void* Address(Index index) {
  void* address = g_real[index].load(std::memory_order_acquire);
  return __builtin_expect(address != nullptr, 1) ? address : Resolve(index);
}

// Finds the driver that the program has loaded, and all its functions. Returns false if none is
// loaded. Takes the loader's lock and no lock of the agent.
bool Bind();

// `address` is the result of a look-up of `name`. Returns its hook, or `address` itself if it has
// none. The hook is found by the address, so this works for any name and version.
void* Substitute(const char* name, void* address);
// Returns true if a function with this exported name (or base name) has a hook and reaches device
// memory.
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

// The functions that the program's calls reach. A function that is declared here is the agent's. It
// hides the driver's function of that name, which the using directive provides, and has its type,
// fn::NAME.
namespace hook {
using namespace real;  // NOLINT
using real::Word;

// memory.cc
fn::cuMemAlloc_v2 cuMemAlloc_v2;
fn::cuMemAllocPitch_v2 cuMemAllocPitch_v2;
fn::cuMemFree_v2 cuMemFree_v2;
fn::cuMemGetInfo_v2 cuMemGetInfo_v2;
fn::cuMemGetHandleForAddressRange cuMemGetHandleForAddressRange;

// ipc_memory.cc
fn::cuIpcGetMemHandle cuIpcGetMemHandle;
fn::cuIpcOpenMemHandle cuIpcOpenMemHandle;
fn::cuIpcOpenMemHandle_v2 cuIpcOpenMemHandle_v2;
fn::cuIpcCloseMemHandle cuIpcCloseMemHandle;

// ipc_events.cc
fn::cuEventCreate cuEventCreate;
fn::cuEventRecord cuEventRecord, cuEventRecord_ptsz;
fn::cuEventRecordWithFlags cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz;
fn::cuEventQuery cuEventQuery;
fn::cuStreamWaitEvent cuStreamWaitEvent, cuStreamWaitEvent_ptsz;
fn::cuIpcGetEventHandle cuIpcGetEventHandle;
fn::cuIpcOpenEventHandle cuIpcOpenEventHandle;
fn::cuEventDestroy_v2 cuEventDestroy_v2;

// driver_memory.cc: counts memory that stays with the driver
fn::cuMemAllocManaged cuMemAllocManaged;
fn::cuMemAllocHost_v2 cuMemAllocHost_v2;
fn::cuMemHostAlloc cuMemHostAlloc;
fn::cuMemFreeHost cuMemFreeHost;
CUresult cuArrayCreate_v2(STASIS_P2);
CUresult cuArray3DCreate_v2(STASIS_P2);
CUresult cuMipmappedArrayCreate(STASIS_P3);

// stream_order.cc
fn::cuMemAllocAsync cuMemAllocAsync, cuMemAllocAsync_ptsz;
fn::cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz;
fn::cuMemFreeAsync cuMemFreeAsync, cuMemFreeAsync_ptsz;

// pools.cc
fn::cuMemPoolCreate cuMemPoolCreate;
fn::cuMemPoolDestroy cuMemPoolDestroy;
fn::cuMemPoolTrimTo cuMemPoolTrimTo;
fn::cuMemPoolGetAttribute cuMemPoolGetAttribute;
fn::cuMemPoolSetAttribute cuMemPoolSetAttribute;
fn::cuMemPoolSetAccess cuMemPoolSetAccess;
fn::cuMemPoolExportToShareableHandle cuMemPoolExportToShareableHandle;
fn::cuMemPoolImportFromShareableHandle cuMemPoolImportFromShareableHandle;

// pointer.cc
fn::cuPointerSetAttribute cuPointerSetAttribute;

// vmm_sharing.cc
fn::cuMemExportToShareableHandle cuMemExportToShareableHandle;
fn::cuMemImportFromShareableHandle cuMemImportFromShareableHandle;

// program_vmm.cc
fn::cuMemCreate cuMemCreate;
fn::cuMemRelease cuMemRelease;
fn::cuMemMap cuMemMap;
fn::cuMemUnmap cuMemUnmap;
fn::cuMemSetAccess cuMemSetAccess;
fn::cuMemRetainAllocationHandle cuMemRetainAllocationHandle;
CUresult cuMulticastCreate(STASIS_P2);
CUresult cuMulticastBindMem(STASIS_P6);
CUresult cuMemMapArrayAsync(STASIS_P3);
CUresult cuMemMapArrayAsync_ptsz(STASIS_P3);

// contexts.cc
CUresult cuCtxCreate(STASIS_P3);
fn::cuCtxCreate_v2 cuCtxCreate_v2;
fn::cuCtxCreate_v3 cuCtxCreate_v3;
fn::cuCtxCreate_v4 cuCtxCreate_v4;
CUresult cuCtxDestroy(STASIS_P1);
fn::cuCtxDestroy_v2 cuCtxDestroy_v2;
fn::cuCtxDetach cuCtxDetach;
fn::cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRetain;
CUresult cuDevicePrimaryCtxRelease(STASIS_P1);
fn::cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease_v2;
CUresult cuDevicePrimaryCtxReset(STASIS_P1);
fn::cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxReset_v2;
fn::cuCtxEnablePeerAccess cuCtxEnablePeerAccess;

// captures.cc
CUresult cuStreamBeginCapture(STASIS_P1);
CUresult cuStreamBeginCapture_ptsz(STASIS_P1);
fn::cuStreamBeginCapture_v2 cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz;
CUresult cuStreamBeginCaptureToGraph(STASIS_P6);
CUresult cuStreamBeginCaptureToGraph_ptsz(STASIS_P6);
fn::cuStreamEndCapture cuStreamEndCapture, cuStreamEndCapture_ptsz;
fn::cuStreamDestroy_v2 cuStreamDestroy_v2;
fn::cuLaunchHostFunc cuLaunchHostFunc, cuLaunchHostFunc_ptsz;
fn::cuStreamAddCallback cuStreamAddCallback, cuStreamAddCallback_ptsz;

}  // namespace hook

}  // namespace stasis::agent
