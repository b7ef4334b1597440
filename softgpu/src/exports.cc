// The exported symbols of libcuda, generated from driver_functions.def.

#include <stdlib.h>

#include <string_view>

#include "api.h"
#include "entry.h"

namespace softgpu {

// NVIDIA's lock admits calls that query or wait for work. On a busy machine such calls read memory
// that a checkpoint has removed (docs/measurements/driver-lock.md). Returns true if softgpu's lock
// must admit them too.
bool LockLeaks() {
  static const bool leaks = [] {
    const char* set = getenv("SOFTGPU_LOCK");
    return set != nullptr && std::string_view(set) == "leaky";
  }();
  return leaks;
}

bool PerThreadDefault() { return t_per_thread_default; }

#define SOFTGPU_EXPORT extern "C" __attribute__((visibility("default")))
#define SOFTGPU_DEFINE(exported, symbol, kind, per_thread, parameters, arguments)         \
  SOFTGPU_EXPORT CUresult exported parameters {                                           \
    return Enter(#symbol, Kind::kind, per_thread, [&] { return api::symbol arguments; }); \
  }

#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) \
  SOFTGPU_DEFINE(symbol, symbol, kind, false, parameters, arguments)
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments) \
  SOFTGPU_DEFINE(symbol, symbol, kind, false, parameters, arguments)      \
  SOFTGPU_DEFINE(symbol##_ptsz, symbol, kind, true, parameters, arguments)
#define STASIS_DRIVER_FN_PTDS(symbol, since, kind, parameters, arguments) \
  SOFTGPU_DEFINE(symbol, symbol, kind, false, parameters, arguments)      \
  SOFTGPU_DEFINE(symbol##_ptds, symbol, kind, true, parameters, arguments)
#define STASIS_DRIVER_UNSUPPORTED(symbol, since)             \
  SOFTGPU_EXPORT CUresult symbol() {                         \
    CUresult r = fault::Check(#symbol);                      \
    return r != CUDA_SUCCESS ? r : CUDA_ERROR_NOT_SUPPORTED; \
  }
#define STASIS_DRIVER_UNSUPPORTED_PTSZ(symbol, since) \
  STASIS_DRIVER_UNSUPPORTED(symbol, since)            \
  STASIS_DRIVER_UNSUPPORTED(symbol##_ptsz, since)
#include "abi/cuda/driver_functions.def"

}  // namespace softgpu
