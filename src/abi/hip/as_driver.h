// Binds the functions of the HIP runtime to those of the CUDA driver, so that code written in the
// driver's terms runs on AMD GPUs too. Most functions need no code (functions.def); here are the
// others. Needs nothing but libc, because the agent includes it.
//
// HIP has no contexts that a program must make: a thread always has a current device. A CUcontext
// is therefore a token of a device here, and is never passed to HIP.
//
// Threads: call Resolve first. Several threads may call it at once, with the same library. Every
// other function is as thread-safe as the function of HIP behind it.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef STASIS_DRIVER_FUNCTION_TYPES_ONLY
#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#endif
#include "abi/hip/functions.h"

namespace stasis::hip::as_driver {

// The runtime's library by its soname, newest first.
inline constexpr const char* kLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6",
                                             "libamdhip64.so.5"};
inline constexpr char kLibraryName[] = "libamdhip64.so";  // the prefix of all of them
// A function that all of them have, and no other driver's library.
inline constexpr char kMarkSymbol[] = "hipGetDeviceCount";

// Versions as hipRuntimeGetVersion returns them: 10,000,000 * major + 100,000 * minor + patch.
inline constexpr int kVersion6 = 60000000;  // hipMemoryType has the driver's values from here on
inline constexpr int kDescriptorByValue = 70100000;  // see DescriptorOf

using Dlsym = void* (*)(void* library, const char* symbol);

#define STASIS_HIP_ADAPTER_CALLS(F) \
  F(hipRuntimeGetVersion)           \
  F(hipGetDevice)                   \
  F(hipSetDevice)                   \
  F(hipSetDeviceFlags)              \
  F(hipDeviceSynchronize)           \
  F(hipStreamGetDevice)             \
  F(hipMemImportFromShareableHandle)

struct Calls {
#define STASIS_HIP_MEMBER(symbol) fn::symbol* symbol = nullptr;
  STASIS_HIP_ADAPTER_CALLS(STASIS_HIP_MEMBER)
#undef STASIS_HIP_MEMBER
};
inline Calls g_calls;

// Looks up what the functions below call. Returns false if `library` lacks one of them.
inline bool Resolve(void* library, Dlsym dlsym) {
  bool all = true;
#define STASIS_HIP_RESOLVE(symbol)                                                      \
  g_calls.symbol = reinterpret_cast<decltype(g_calls.symbol)>(dlsym(library, #symbol)); \
  all &= g_calls.symbol != nullptr;
  STASIS_HIP_ADAPTER_CALLS(STASIS_HIP_RESOLVE)
#undef STASIS_HIP_RESOLVE
  return all;
}

// Returns 0 if it is unknown.
inline int Version() {
  int version = 0;
  return g_calls.hipRuntimeGetVersion(&version) == CUDA_SUCCESS ? version : 0;
}

inline CUcontext TokenOf(int device) { return reinterpret_cast<CUcontext>(intptr_t{device} + 1); }
inline int DeviceOf(CUcontext token) { return int(reinterpret_cast<intptr_t>(token)) - 1; }

// Before 7.1 hipMemImportFromShareableHandle took the address of the descriptor. Since then it
// takes the descriptor itself, like the driver.
inline int DescriptorOf(void* os_handle) {
  return Version() >= kDescriptorByValue || os_handle == nullptr
             ? int(reinterpret_cast<intptr_t>(os_handle))
             : *static_cast<const int*>(os_handle);
}

// The devices that this thread's cuCtxPushCurrent has replaced.
struct Replaced {
  int8_t count;
  int8_t devices[7];
};
inline __thread Replaced t_replaced __attribute__((tls_model("initial-exec")));

// The functions of the driver that HIP has in another form, under their own names.
namespace adapter {

inline CUresult cuDriverGetVersion(int* version) {
  const CUresult r = g_calls.hipRuntimeGetVersion(version);
  // In CUDA's format: 1000 * major + 10 * minor.
  if (r == CUDA_SUCCESS) *version = *version / 10000000 * 1000 + *version / 100000 % 100 * 10;
  return r;
}

// HIP has no such attributes. The agent tests whether memory can be exported.
inline CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
           attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  return CUDA_SUCCESS;
}

inline CUresult cuCtxGetCurrent(CUcontext* context) {
  int device = 0;
  const CUresult r = g_calls.hipGetDevice(&device);
  *context = r == CUDA_SUCCESS ? TokenOf(device) : nullptr;
  return r;
}
inline CUresult cuCtxSetCurrent(CUcontext context) {
  return context == nullptr ? CUDA_SUCCESS : g_calls.hipSetDevice(DeviceOf(context));
}
inline CUresult cuCtxGetDevice(CUdevice* device) { return g_calls.hipGetDevice(device); }
inline CUresult cuCtxPushCurrent_v2(CUcontext context) {
  int device = 0;
  CUresult r = g_calls.hipGetDevice(&device);
  if (r == CUDA_SUCCESS && t_replaced.count == int8_t(sizeof(t_replaced.devices))) {
    r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (r == CUDA_SUCCESS) r = g_calls.hipSetDevice(DeviceOf(context));
  if (r == CUDA_SUCCESS) t_replaced.devices[t_replaced.count++] = int8_t(device);
  return r;
}
inline CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (t_replaced.count == 0) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult r = adapter::cuCtxGetCurrent(context);
  return r == CUDA_SUCCESS ? g_calls.hipSetDevice(t_replaced.devices[--t_replaced.count]) : r;
}
inline CUresult cuCtxSynchronize() { return g_calls.hipDeviceSynchronize(); }
// With HIP, lower limits would free no memory.
inline CUresult cuCtxGetLimit(size_t*, CUlimit) { return CUDA_ERROR_NOT_SUPPORTED; }
inline CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_ERROR_NOT_SUPPORTED; }

inline CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = TokenOf(device);
  return CUDA_SUCCESS;
}
inline CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
inline CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  const CUresult r = g_calls.hipSetDevice(device);
  return r == CUDA_SUCCESS ? g_calls.hipSetDeviceFlags(flags) : r;
}

// The default streams are those of the current device.
inline CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  constexpr uintptr_t kLastDefault = 2;  // CU_STREAM_PER_THREAD
  int device = 0;
  const CUresult r = reinterpret_cast<uintptr_t>(stream) <= kLastDefault
                         ? g_calls.hipGetDevice(&device)
                         : g_calls.hipStreamGetDevice(stream, &device);
  *context = r == CUDA_SUCCESS ? TokenOf(device) : nullptr;
  return r;
}

inline CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                               void* os_handle, CUmemAllocationHandleType type) {
  int fd = int(reinterpret_cast<intptr_t>(os_handle));
  const bool by_address =
      type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && Version() < kDescriptorByValue;
  return g_calls.hipMemImportFromShareableHandle(handle, by_address ? &fd : os_handle, type);
}

}  // namespace adapter

#define STASIS_HIP_ADAPTERS(F)     \
  F(cuDriverGetVersion)            \
  F(cuDeviceGetAttribute)          \
  F(cuCtxGetCurrent)               \
  F(cuCtxSetCurrent)               \
  F(cuCtxGetDevice)                \
  F(cuCtxPushCurrent_v2)           \
  F(cuCtxPopCurrent_v2)            \
  F(cuCtxSynchronize)              \
  F(cuCtxGetLimit)                 \
  F(cuCtxSetLimit)                 \
  F(cuDevicePrimaryCtxRetain)      \
  F(cuDevicePrimaryCtxRelease_v2)  \
  F(cuDevicePrimaryCtxSetFlags_v2) \
  F(cuStreamGetCtx)                \
  F(cuMemImportFromShareableHandle)

// Returns the function that serves as the driver's `symbol`, or null if HIP has none. Call Resolve
// first.
inline void* Find(void* library, Dlsym dlsym, const char* symbol) {
#define STASIS_HIP_TRY(name)                       \
  if (strcmp(symbol, #name) == 0) {                \
    fn_of_driver::name* function = &adapter::name; \
    return reinterpret_cast<void*>(function);      \
  }
  namespace fn_of_driver = stasis::cuda::fn;
  STASIS_HIP_ADAPTERS(STASIS_HIP_TRY)
#undef STASIS_HIP_TRY
  struct Pair {
    const char* driver;
    const char* hip;
  };
  static constexpr Pair kPairs[] = {
#define STASIS_HIP_SAME(symbol, driver) {#driver, #symbol},
#include "abi/hip/functions.def"
  };
  for (const Pair& pair : kPairs) {
    if (strcmp(symbol, pair.driver) != 0) continue;
    if (void* address = dlsym(library, pair.hip)) return address;
  }
  return nullptr;
}

}  // namespace stasis::hip::as_driver
