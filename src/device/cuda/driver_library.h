// Loads the driver with dlopen: libcuda.so.1, or on a machine without it the HIP runtime, whose
// functions then serve as the driver's (abi/hip/as_driver.h). No Stasis program links either, so
// all of them run on machines without them.
#pragma once

#include <string>

#include "base/file.h"

#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "abi/cuda/driver_functions.h"
#include "abi/driver_kinds.h"

namespace stasis::device::cuda {

// The driver functions that Stasis calls, by exported symbol. Every supported driver has these:
// clang-format off
#define STASIS_DEVICE_BASIC_FUNCTIONS(F) \
  F(cuInit)                              \
  F(cuDriverGetVersion)                  \
  F(cuGetErrorName)                      \
  F(cuGetErrorString)                    \
  F(cuDeviceGetCount)                    \
  F(cuDeviceGet)                         \
  F(cuDeviceGetName)                     \
  F(cuDeviceGetUuid)                     \
  F(cuDeviceTotalMem_v2)                 \
  F(cuDevicePrimaryCtxRetain)            \
  F(cuDevicePrimaryCtxRelease_v2)        \
  F(cuCtxPushCurrent_v2)                 \
  F(cuCtxPopCurrent_v2)                  \
  F(cuMemGetInfo_v2)
// Older drivers may lack these functions, whose pointers are then null:
#define STASIS_DEVICE_NEWER_FUNCTIONS(F)   \
  F(cuDeviceGetUuid_v2)                    \
  F(cuCheckpointProcessGetState)           \
  F(cuCheckpointProcessGetRestoreThreadId) \
  F(cuCheckpointProcessLock)               \
  F(cuCheckpointProcessCheckpoint)         \
  F(cuCheckpointProcessRestore)            \
  F(cuCheckpointProcessUnlock)
// clang-format on

struct DriverFunctions {
#define STASIS_DEVICE_MEMBER(symbol) stasis::cuda::fn::symbol* symbol = nullptr;
  STASIS_DEVICE_BASIC_FUNCTIONS(STASIS_DEVICE_MEMBER)
  STASIS_DEVICE_NEWER_FUNCTIONS(STASIS_DEVICE_MEMBER)
#undef STASIS_DEVICE_MEMBER
};

struct DriverLibrary {
  DriverFunctions fn;
  const abi::DriverKind* kind = nullptr;  // set if `opened`
  std::string version;  // driver version as its vendor writes it; empty if unknown
  int api_version = 0;
  bool can_checkpoint = false;
  std::string why_not;  // the reason, if checkpointing is not supported

  // Returns the function of this name of the CUDA driver, or the one of HIP that serves as it; null
  // if there is none.
  void* Find(const char* symbol) const;

  void* handle = nullptr;
  bool hip = false;  // the library is the HIP runtime
  std::string path;  // of the loaded library, as the loader found it
  FileId file;
  bool opened = false;       // the library was loaded
  bool initialised = false;  // cuInit succeeded
};

// Opens `path`, resolves symbols and calls cuInit(0). If `path` is empty, the loader searches for
// libcuda.so.1, then for HIP's library. Takes 0.1 to 2.7 s on a real GPU. The library is never
// closed, because driver threads may still run.
DriverLibrary OpenDriver(const std::string& path);

// Returns true if the path of the loaded library now names another file or none, as after an
// upgrade of the driver.
bool WasReplaced(const DriverLibrary& driver);

}  // namespace stasis::device::cuda
