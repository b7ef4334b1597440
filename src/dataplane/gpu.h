// A mover's access to the driver: one GPU, one small context, driver errors as Error. Runs only in
// the mover's process.
#pragma once

#include <cstdint>
#include <string>

#include "abi/driver_kinds.h"
#include "base/result.h"
#include "device/cuda/driver_library.h"
#include "device/device_control.h"

namespace stasis::dataplane {

namespace cu = stasis::cuda;

// clang-format off
#define STASIS_MOVER_FUNCTIONS(F)           \
  F(cuDeviceGetAttribute)                   \
  F(cuDevicePrimaryCtxSetFlags_v2)          \
  F(cuCtxSetCurrent)                        \
  F(cuCtxSetLimit)                          \
  F(cuMemGetAllocationGranularity)          \
  F(cuMemGetAllocationPropertiesFromHandle) \
  F(cuMemAddressReserve)                    \
  F(cuMemAddressFree)                       \
  F(cuMemCreate)                            \
  F(cuMemRelease)                           \
  F(cuMemMap)                               \
  F(cuMemUnmap)                             \
  F(cuMemSetAccess)                         \
  F(cuMemExportToShareableHandle)           \
  F(cuMemImportFromShareableHandle)         \
  F(cuMemHostAlloc)                         \
  F(cuMemFreeHost)                          \
  F(cuMemHostGetDevicePointer_v2)           \
  F(cuMemHostRegister_v2)                   \
  F(cuMemHostUnregister)                    \
  F(cuMemcpyDtoHAsync_v2)                   \
  F(cuMemcpyHtoDAsync_v2)                   \
  F(cuMemcpyDtoDAsync_v2)                   \
  F(cuMemsetD8Async)                        \
  F(cuStreamCreate)                         \
  F(cuStreamSynchronize)                    \
  F(cuEventCreate)                          \
  F(cuEventRecord)                          \
  F(cuEventSynchronize)                     \
  F(cuEventElapsedTime)                     \
  F(cuMemAlloc_v2)                          \
  F(cuMemFree_v2)                           \
  F(cuMemcpyDtoH_v2)                        \
  F(cuModuleLoad)                           \
  F(cuModuleLoadData)                       \
  F(cuModuleUnload)                         \
  F(cuModuleGetFunction)                    \
  F(cuLaunchKernel)
// clang-format on

struct MoverFunctions {
#define STASIS_MOVER_MEMBER(symbol) stasis::cuda::fn::symbol* symbol = nullptr;
  STASIS_MOVER_FUNCTIONS(STASIS_MOVER_MEMBER)
#undef STASIS_MOVER_MEMBER
};

class Gpu {
 public:
  // Loads the driver (`library` as in OpenDriver()) and creates a context of minimal size on the
  // GPU: its only kernel (block_hasher.h) needs no stack, heap or print buffer. Returns kNotFound
  // if the machine has no such GPU, kResourceExhausted if the GPU has no memory for a context.
  static Result<Gpu> Open(const std::string& library, const device::GpuUuid& uuid);

  const MoverFunctions& fn() const { return fn_; }
  cu::CUdevice device() const { return device_; }
  const abi::DriverKind& kind() const { return *kind_; }
  uint64_t granularity() const { return granularity_; }
  uint64_t context_bytes() const { return context_bytes_; }  // 0 if unknown
  // Makes the context current in the calling thread.
  Status Use() const;

  struct Memory {
    uint64_t free_bytes;
    uint64_t total_bytes;
  };
  Result<Memory> ReadMemory() const;
  // Fails if the connection to the GPU was lost since Open(). Allocates and frees a little memory
  // to check; a full GPU is not an error.
  Status CheckConnection() const;

  // Properties of memory on this GPU that can be exported as a file descriptor. Other devices can
  // access it as they can access memory from cuMemAlloc.
  cu::CUmemAllocationProp Properties() const;
  // Converts a driver result to an Error with the name of the call and the driver's text.
  Error MakeError(cu::CUresult result, const char* call) const;

 private:
  MoverFunctions fn_;
  device::cuda::DriverFunctions basic_;
  cu::CUdevice device_ = 0;
  cu::CUcontext context_ = nullptr;
  const abi::DriverKind* kind_ = nullptr;
  bool rdma_ = false;
  uint64_t granularity_ = 0;
  uint64_t context_bytes_ = 0;
};

// Returns true if the driver is still usable after this result. After any other error the mover
// exits.
bool IsHarmless(int cu_result);

// Returns from the function with the driver's error: STASIS_GPU(gpu, cuMemMap, (va, …)).
#define STASIS_GPU(gpu, call, arguments)                                                         \
  do {                                                                                           \
    if (auto stasis_cu_ = (gpu).fn().call arguments; stasis_cu_ != stasis::cuda::CUDA_SUCCESS) { \
      return ::stasis::Fail((gpu).MakeError(stasis_cu_, #call));                                 \
    }                                                                                            \
  } while (0)

}  // namespace stasis::dataplane
