// fn::NAME is the type of each function in functions.def whose parameters are known.
#pragma once

#include "abi/cuda/driver_functions.h"
#include "abi/hip/hip_abi.h"

namespace stasis::hip::fn {

#define STASIS_HIP_SAME(symbol, driver) using symbol = stasis::cuda::fn::driver;
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) using symbol = hipError_t parameters;
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) using symbol = result parameters;
#include "abi/hip/functions.def"

}  // namespace stasis::hip::fn
