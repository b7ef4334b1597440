// The driver API's functions as the rest of this library writes them: softgpu::api::NAME.
// exports.cc wraps each one in an exported symbol that checks, gates and can be told to fail.
#pragma once

#include "base.h"

namespace softgpu::api {

#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) CUresult symbol parameters;
#include "device/cuda/driver_functions.def"

}  // namespace softgpu::api
