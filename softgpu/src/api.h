// The driver API's functions under their internal names, softgpu::api::NAME. exports.cc wraps each
// one in an exported symbol that checks state, passes the gate and injects faults.
#pragma once

#include "base.h"

namespace softgpu::api {

#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) CUresult symbol parameters;
#include "abi/cuda/driver_functions.def"

}  // namespace softgpu::api
