// The exported symbols, generated from driver_functions.def. Every call checks for injected faults
// and for the driver's state, and passes the gate that a lock closes.

#include <stdlib.h>

#include <new>
#include <string_view>

#include "api.h"
#include "checkpoint.h"
#include "driver.h"
#include "fault.h"
#include "stream.h"

namespace softgpu {
namespace {

enum class Kind { Lookup, Init, Query, Poll, Object, Memory, Submit, Wait, Checkpoint };

thread_local bool t_per_thread_default = false;

template <class F>
CUresult Guarded(F f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

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

template <class F>
CUresult Enter(const char* symbol, Kind kind, bool per_thread, F f) {
  if (CUresult r = fault::Check(symbol); r != CUDA_SUCCESS) return r;
  if (kind == Kind::Lookup || kind == Kind::Init) return Guarded(f);
  if (!driver().initialised.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (kind == Kind::Checkpoint) return Guarded(f);
  if (OnStreamThread()) return CUDA_ERROR_NOT_PERMITTED;
  const bool passes = (kind == Kind::Poll || kind == Kind::Wait) && LockLeaks();
  const bool counted = kind != Kind::Wait && !passes;
  if (passes) {
    EndIfCheckpointed(symbol);
  } else if (kind == Kind::Wait) {
    driver().gate.PassUncounted();
  } else {
    driver().gate.Enter();
  }
  bool before = std::exchange(t_per_thread_default, per_thread);
  CUresult result = Guarded(f);
  t_per_thread_default = before;
  fault::TakeLate();
  if (counted) driver().gate.Leave();
  return result;
}

}  // namespace

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
