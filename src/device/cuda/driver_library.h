// libcuda.so.1, opened by hand: nothing of ours links it, so that everything runs where it is
// missing, and says so.
#pragma once

#include <string>

#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "device/cuda/driver_functions.h"

namespace stasis::device::cuda {

// Every function that we call, by the symbol that the library exports.
// Those that any driver of the last years has:
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
// Those that may be missing, and are null then:
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
  std::string kind;     // "nvidia" or "softgpu"
  std::string version;  // of the driver, as its maker writes it; may be unknown (empty)
  int api_version = 0;
  bool can_checkpoint = false;
  std::string why_not;  // when it cannot

  bool opened = false;       // the library is there
  bool initialised = false;  // cuInit succeeded
};

// Opens `path` (empty: by the loader's search), resolves, and calls cuInit(0). Takes 0.1 to 2.7 s
// on a real GPU. Never closed again: a driver's threads may still run.
DriverLibrary OpenDriver(const std::string& path);

}  // namespace stasis::device::cuda
