// The second face: libamdhip64.so.6 over the same driver. exports.cc defines the exported symbols
// from abi/hip/functions.def. A HIP function either calls the driver function that serves it or is
// declared here under its own name.
#pragma once

// Include only the types. Argument-dependent lookup would find exported functions beside those of
// `own`.
#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "abi/hip/functions.h"
#include "api.h"
#include "driver.h"

namespace softgpu::hip {

using namespace stasis::hip;  // NOLINT: this library is that API

// Variants of driver functions, for the HIP functions of STASIS_HIP_LIKE. All others are those of
// softgpu::api.
namespace api {
using namespace softgpu::api;  // NOLINT: a declaration here hides the driver's function
#define STASIS_HIP_SAME(symbol, driver)
#define STASIS_HIP_LIKE(symbol, driver) stasis::cuda::fn::driver driver;
#include "abi/hip/functions.def"
}  // namespace api

// HIP's own functions.
namespace own {
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) hipError_t symbol parameters;
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) result symbol parameters;
#include "abi/hip/functions.def"
}  // namespace own

inline constexpr int kVersion = 60400000;  // 6.4.0, if SOFTGPU_HIP_VERSION is not set

// Returns the result of hipRuntimeGetVersion: SOFTGPU_HIP_VERSION or the built-in value.
int Version();

// The error that hipGetLastError returns to the calling thread.
hipError_t LastError();
void SetLastError(hipError_t error);

inline CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace softgpu::hip
