// The code around the implementation of every exported function. It checks for injected faults and
// for the driver's state, and passes the gate that a lock closes.
#pragma once

#include <new>
#include <utility>

#include "checkpoint.h"
#include "driver.h"
#include "fault.h"
#include "stream.h"

namespace softgpu {

// The kinds of calls, as in abi/cuda/driver_functions.def.
enum class Kind { Lookup, Init, Query, Held, Poll, Object, Memory, Submit, Wait, Checkpoint };

inline thread_local bool t_per_thread_default = false;

// Returns true if a lock does not block calls that query or wait for work (SOFTGPU_LOCK).
bool LockLeaks();

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

// `per_thread`: the null stream is the calling thread's default stream.
template <class F>
CUresult Enter(const char* symbol, Kind kind, bool per_thread, F f) {
  if (CUresult r = fault::Check(symbol); r != CUDA_SUCCESS) return r;
  if (kind == Kind::Lookup || kind == Kind::Init) return Guarded(f);
  if (!driver().initialised.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (kind == Kind::Checkpoint) return Guarded(f);
  if (OnStreamThread()) return CUDA_ERROR_NOT_PERMITTED;
  const bool leaks = (kind == Kind::Poll || kind == Kind::Wait) && LockLeaks();
  const bool counted = kind != Kind::Query && kind != Kind::Wait && !leaks;
  if (leaks) {
    EndIfCheckpointed(symbol);
  } else if (kind == Kind::Query) {
    // A lock does not block it.
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

}  // namespace softgpu
