// A small CUDA runtime with the parts of libcudart that tests need. Like the real one it does not
// link the driver: at first use it opens libcuda.so.1, gets the address of cuGetProcAddress from
// dlsym, and all other functions from cuGetProcAddress, in the versions that it was built for. All
// calls work in the primary context of the current device.
//
// Results are cudaError_t. As in CUDA, they have the driver's numbers where the meaning is the
// same.

#include <dlfcn.h>

#include <cstddef>
#include <mutex>

#include "abi/cuda/driver_functions.h"

namespace {

using namespace stasis::cuda;  // NOLINT: this file uses that API throughout

constexpr int kVersion = 13000;
constexpr int kErrorInsufficientDriver = 35;
constexpr int kErrorInvalidMemcpyDirection = 21;

// The driver functions used here, and the versions of their signatures.
#define RUNTIME_FUNCTIONS(X)                                    \
  X(cuInit, cuInit, 2000)                                       \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020)               \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000)                   \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)   \
  X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000) \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                     \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000)                   \
  X(cuMemGetInfo, cuMemGetInfo_v2, 3020)                        \
  X(cuMemAlloc, cuMemAlloc_v2, 3020)                            \
  X(cuMemFree, cuMemFree_v2, 3020)                              \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020)                    \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020)                      \
  X(cuMemHostAlloc, cuMemHostAlloc, 2020)                       \
  X(cuMemFreeHost, cuMemFreeHost, 2000)                         \
  X(cuMemcpy, cuMemcpy, 4000)                                   \
  X(cuMemcpyAsync, cuMemcpyAsync, 4000)                         \
  X(cuMemsetD8, cuMemsetD8_v2, 3020)                            \
  X(cuStreamCreate, cuStreamCreate, 2000)                       \
  X(cuStreamDestroy, cuStreamDestroy_v2, 4000)                  \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000)             \
  X(cuGetErrorName, cuGetErrorName, 6000)                       \
  X(cuGetErrorString, cuGetErrorString, 6000)

struct Driver {
#define FIELD(name, type, version) fn::type* name = nullptr;
  RUNTIME_FUNCTIONS(FIELD)
#undef FIELD
  fn::cuGetProcAddress_v2* look_up = nullptr;
  int error = kErrorInsufficientDriver;
};

template <class F>
bool Find(const Driver& driver, const char* name, int version, F** out) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (driver.look_up(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) !=
          CUDA_SUCCESS ||
      address == nullptr) {
    return false;
  }
  *out = reinterpret_cast<F*>(address);
  return true;
}

Driver Load() {
  Driver driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return driver;
  // dlsym returns the old version of cuGetProcAddress. This version is used only to get the one of
  // CUDA 12.0, which looks up all other functions.
  auto* first = reinterpret_cast<fn::cuGetProcAddress*>(dlsym(library, "cuGetProcAddress"));
  void* second = nullptr;
  if (first == nullptr || first("cuGetProcAddress", &second, 12000, 0) != CUDA_SUCCESS) {
    return driver;
  }
  driver.look_up = reinterpret_cast<fn::cuGetProcAddress_v2*>(second);
#define LOOK_UP(name, type, version) \
  if (!Find(driver, #name, version, &driver.name)) return driver;
  RUNTIME_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
  driver.error = int(driver.cuInit(0));
  return driver;
}

const Driver& TheDriver() {
  static const Driver driver = Load();
  return driver;
}

thread_local int t_device = 0;
thread_local int t_last_error = 0;

int Keep(int error) {
  if (error != 0) t_last_error = error;
  return error;
}

// Makes the device's primary context current on this thread.
int Enter() {
  const Driver& driver = TheDriver();
  if (driver.error != 0) return driver.error;
  static std::mutex mutex;
  static CUcontext contexts[16] = {};
  std::lock_guard lock(mutex);
  CUcontext& context = contexts[t_device];
  if (context == nullptr) {
    if (int r = int(driver.cuDevicePrimaryCtxRetain(&context, t_device))) return r;
  }
  return int(driver.cuCtxSetCurrent(context));
}

// Calls `f` with the driver, in the current device's context.
template <class F>
int Call(F f) {
  if (int error = Enter()) return Keep(error);
  return Keep(int(f(TheDriver())));
}

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

#define RUNTIME_API extern "C" __attribute__((visibility("default")))

RUNTIME_API int cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return 0;
}

RUNTIME_API int cudaDriverGetVersion(int* version) {
  const Driver& driver = TheDriver();
  if (driver.cuDriverGetVersion == nullptr) return Keep(driver.error);
  return Keep(int(driver.cuDriverGetVersion(version)));
}

RUNTIME_API int cudaGetDeviceCount(int* count) {
  if (TheDriver().error != 0) return Keep(TheDriver().error);
  return Keep(int(TheDriver().cuDeviceGetCount(count)));
}

RUNTIME_API int cudaSetDevice(int device) {
  int count = 0;
  if (int error = cudaGetDeviceCount(&count)) return error;
  if (device < 0 || device >= count) return Keep(101);
  t_device = device;
  return 0;
}

RUNTIME_API int cudaGetDevice(int* device) {
  *device = t_device;
  return 0;
}

RUNTIME_API int cudaDeviceSynchronize() {
  return Call([](const Driver& d) { return d.cuCtxSynchronize(); });
}

RUNTIME_API int cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  return Call([&](const Driver& d) { return d.cuMemGetInfo(free_bytes, total); });
}

RUNTIME_API int cudaMalloc(void** pointer, size_t bytes) {
  return Call([&](const Driver& d) {
    return d.cuMemAlloc(reinterpret_cast<CUdeviceptr*>(pointer), bytes);
  });
}

RUNTIME_API int cudaFree(void* pointer) {
  return Call([&](const Driver& d) { return d.cuMemFree(Address(pointer)); });
}

RUNTIME_API int cudaMallocAsync(void** pointer, size_t bytes, CUstream stream) {
  return Call([&](const Driver& d) {
    return d.cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(pointer), bytes, stream);
  });
}

RUNTIME_API int cudaFreeAsync(void* pointer, CUstream stream) {
  return Call([&](const Driver& d) { return d.cuMemFreeAsync(Address(pointer), stream); });
}

RUNTIME_API int cudaMallocHost(void** pointer, size_t bytes) {
  return Call([&](const Driver& d) { return d.cuMemHostAlloc(pointer, bytes, 0); });
}

RUNTIME_API int cudaFreeHost(void* pointer) {
  return Call([&](const Driver& d) { return d.cuMemFreeHost(pointer); });
}

// `kind` is a number from 0 (cudaMemcpyHostToHost) to 4 (cudaMemcpyDefault). It is only checked,
// because the driver recognises host and device memory by the address.
RUNTIME_API int cudaMemcpy(void* target, const void* source, size_t bytes, int kind) {
  if (kind < 0 || kind > 4) return Keep(kErrorInvalidMemcpyDirection);
  return Call([&](const Driver& d) { return d.cuMemcpy(Address(target), Address(source), bytes); });
}

RUNTIME_API int cudaMemcpyAsync(void* target, const void* source, size_t bytes, int kind,
                                CUstream stream) {
  if (kind < 0 || kind > 4) return Keep(kErrorInvalidMemcpyDirection);
  return Call([&](const Driver& d) {
    return d.cuMemcpyAsync(Address(target), Address(source), bytes, stream);
  });
}

RUNTIME_API int cudaMemset(void* pointer, int value, size_t bytes) {
  return Call([&](const Driver& d) {
    return d.cuMemsetD8(Address(pointer), static_cast<unsigned char>(value), bytes);
  });
}

RUNTIME_API int cudaStreamCreate(CUstream* stream) {
  return Call([&](const Driver& d) { return d.cuStreamCreate(stream, CU_STREAM_DEFAULT); });
}

RUNTIME_API int cudaStreamDestroy(CUstream stream) {
  return Call([&](const Driver& d) { return d.cuStreamDestroy(stream); });
}

RUNTIME_API int cudaStreamSynchronize(CUstream stream) {
  return Call([&](const Driver& d) { return d.cuStreamSynchronize(stream); });
}

RUNTIME_API int cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                 unsigned version, unsigned long long flags,
                                                 unsigned* status) {
  const Driver& driver = TheDriver();
  if (driver.look_up == nullptr) return Keep(driver.error);
  CUdriverProcAddressQueryResult result{};
  CUresult r = driver.look_up(symbol, function, int(version), flags, &result);
  if (status != nullptr) *status = unsigned(result);
  return Keep(int(r));
}

RUNTIME_API int cudaGetDriverEntryPoint(const char* symbol, void** function,
                                        unsigned long long flags, unsigned* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, kVersion, flags, status);
}

RUNTIME_API int cudaGetLastError() {
  int error = t_last_error;
  t_last_error = 0;
  return error;
}

RUNTIME_API const char* cudaGetErrorString(int error) {
  const char* text = nullptr;
  if (error == kErrorInsufficientDriver) return "there is no CUDA driver, or it is too old";
  const Driver& driver = TheDriver();
  if (driver.cuGetErrorString != nullptr) driver.cuGetErrorString(CUresult(error), &text);
  return text != nullptr ? text : "unrecognized error code";
}
