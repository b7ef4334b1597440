// Prototypes of all functions in driver_functions.def, for code that links libcuda.so.1, and their
// types as fn::NAME, for code that looks them up at run time.
#pragma once

#include "abi/cuda/driver_abi.h"

namespace stasis::cuda {

namespace fn {
#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) \
  using symbol = CUresult parameters;
#include "abi/cuda/driver_functions.def"
}  // namespace fn

#ifndef STASIS_DRIVER_FUNCTION_TYPES_ONLY
extern "C" {
#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) CUresult symbol parameters;
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments) \
  CUresult symbol parameters;                                             \
  CUresult symbol##_ptsz parameters;
#define STASIS_DRIVER_FN_PTDS(symbol, since, kind, parameters, arguments) \
  CUresult symbol parameters;                                             \
  CUresult symbol##_ptds parameters;
#include "abi/cuda/driver_functions.def"
}
#endif

}  // namespace stasis::cuda
