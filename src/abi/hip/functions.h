// Prototypes of the functions in functions.def whose parameters are known, for code that links
// libamdhip64.so.6, and their types as fn::NAME.
#pragma once

#include "abi/cuda/driver_functions.h"
#include "abi/hip/hip_abi.h"

namespace stasis::hip {

namespace fn {
#define STASIS_HIP_SAME(symbol, driver) using symbol = stasis::cuda::fn::driver;
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) using symbol = hipError_t parameters;
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) using symbol = result parameters;
#include "abi/hip/functions.def"
}  // namespace fn

#ifndef STASIS_DRIVER_FUNCTION_TYPES_ONLY
extern "C" {
#define STASIS_HIP_SAME(symbol, driver) fn::symbol symbol;
#define STASIS_HIP_SAME_SPT(symbol, driver) \
  fn::symbol symbol;                        \
  fn::symbol symbol##_spt;
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) fn::symbol symbol;
#define STASIS_HIP_OWN_SPT(symbol, kind, parameters, arguments) \
  fn::symbol symbol;                                            \
  fn::symbol symbol##_spt;
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) fn::symbol symbol;
#include "abi/hip/functions.def"
}
#endif

}  // namespace stasis::hip
