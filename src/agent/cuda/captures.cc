#include "agent/cuda/captures.h"

#include <stdlib.h>

#include "agent/cuda/memory.h"
#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/vector.h"

namespace stasis::agent {
namespace {

Mutex g_mutex;
Vector<CUstream> g_capturing;
std::atomic<uint32_t> g_count{0};
Vector<CUdeviceptr> g_questions;  // test allocations, freed after the last capture

void Ended(CUstream stream) {
  Vector<CUdeviceptr> questions;
  {
    Lock lock(g_mutex);
    const size_t i = g_capturing.FindIf([&](CUstream one) { return one == stream; });
    if (i < g_capturing.size()) g_capturing.Erase(i);
    g_count.store(uint32_t(g_capturing.size()));
    if (g_capturing.size() > 0) return;
    questions = g_questions;
    g_questions = {};
  }
  for (CUdeviceptr ptr : questions) real::cuMemFree_v2(ptr);
  questions.Free();
  FreeDeferred();
}

// Counts the capture before it begins, because a capture that cannot be counted must not begin.
template <class F>
CUresult Begin(CUstream stream, F begin) {
  {
    Lock lock(g_mutex);
    if (!g_capturing.Push(stream)) return CUDA_ERROR_OUT_OF_MEMORY;
    g_count.store(uint32_t(g_capturing.size()));
  }
  const CUresult r = begin();
  if (r != CUDA_SUCCESS) Ended(stream);
  return r;
}

bool IsCapturing(CUstream stream) {
  if (CapturesOpen() == 0) return false;
  Lock lock(g_mutex);
  return g_capturing.FindIf([&](CUstream one) { return one == stream; }) < g_capturing.size();
}

CUresult EndedWith(CUresult r, CUstream stream) {
  // The capture has ended unless the driver returned one of these two errors (WRONG_THREAD,
  // UNMATCHED).
  if (r != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD && r != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) {
    Ended(stream);
  }
  return r;
}

CUstream Stream(hook::Word word) { return reinterpret_cast<CUstream>(word); }

// A callback of the program. A driver thread runs it and must not block at the gate.
struct HostCall {
  CUhostFn function;
  CUstreamCallback callback;
  void* data;
};

void RunHostFunction(void* argument) {
  auto* call = static_cast<HostCall*>(argument);
  gate::Exempt exempt;
  call->function(call->data);
  free(call);
}

void RunCallback(CUstream stream, CUresult status, void* argument) {
  auto* call = static_cast<HostCall*>(argument);
  gate::Exempt exempt;
  call->callback(stream, status, call->data);
  free(call);
}

HostCall* MakeCall(CUhostFn function, CUstreamCallback callback, void* data) {
  // A captured callback is not wrapped: a graph may run it any number of times, so its HostCall
  // could never be freed.
  if (CapturesOpen() != 0 || (function == nullptr && callback == nullptr)) return nullptr;
  auto* call = static_cast<HostCall*>(malloc(sizeof(HostCall)));
  if (call != nullptr) *call = {function, callback, data};
  return call;
}

}  // namespace

uint32_t CapturesOpen() { return g_count.load(std::memory_order_relaxed); }

CUresult AskWhetherCaptureAllows() {
  if (CapturesOpen() == 0) return CUDA_SUCCESS;
  CUdeviceptr question = 0;
  CUresult r = real::cuMemAlloc_v2(&question, 512);
  if (r != CUDA_SUCCESS) return r;
  Lock lock(g_mutex);
  return g_questions.Push(question) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void ResetCaptures() {
  g_mutex.ResetAfterFork();
  g_capturing.AbandonAfterFork();
  g_questions.AbandonAfterFork();
  g_count.store(0);
}

namespace hook {

CUresult cuStreamBeginCapture(STASIS_P1) {
  return Begin(Stream(a), [&] { return real::cuStreamBeginCapture(STASIS_A1); });
}
CUresult cuStreamBeginCapture_ptsz(STASIS_P1) {
  return Begin(Stream(a), [&] { return real::cuStreamBeginCapture_ptsz(STASIS_A1); });
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return Begin(stream, [&] { return real::cuStreamBeginCapture_v2(stream, mode); });
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return Begin(stream, [&] { return real::cuStreamBeginCapture_v2_ptsz(stream, mode); });
}
CUresult cuStreamBeginCaptureToGraph(STASIS_P6) {
  return Begin(Stream(a), [&] { return real::cuStreamBeginCaptureToGraph(STASIS_A6); });
}
CUresult cuStreamBeginCaptureToGraph_ptsz(STASIS_P6) {
  return Begin(Stream(a), [&] { return real::cuStreamBeginCaptureToGraph_ptsz(STASIS_A6); });
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return EndedWith(real::cuStreamEndCapture(stream, graph), stream);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return EndedWith(real::cuStreamEndCapture_ptsz(stream, graph), stream);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  // Check for a capture before the stream is destroyed, because afterwards another thread may get a
  // new stream with the same handle.
  const bool capturing = IsCapturing(stream);
  CUresult r = real::cuStreamDestroy_v2(stream);
  if (r == CUDA_SUCCESS && capturing) Ended(stream);
  return r;
}

#define STASIS_HOST_CALLS(suffix)                                                                 \
  CUresult cuLaunchHostFunc##suffix(CUstream stream, CUhostFn function, void* data) {             \
    HostCall* call = MakeCall(function, nullptr, data);                                           \
    if (call == nullptr) return real::cuLaunchHostFunc##suffix(stream, function, data);           \
    CUresult r = real::cuLaunchHostFunc##suffix(stream, RunHostFunction, call);                   \
    if (r != CUDA_SUCCESS) free(call);                                                            \
    return r;                                                                                     \
  }                                                                                               \
  CUresult cuStreamAddCallback##suffix(CUstream stream, CUstreamCallback callback, void* data,    \
                                       unsigned flags) {                                          \
    HostCall* call = MakeCall(nullptr, callback, data);                                           \
    if (call == nullptr) return real::cuStreamAddCallback##suffix(stream, callback, data, flags); \
    CUresult r = real::cuStreamAddCallback##suffix(stream, RunCallback, call, flags);             \
    if (r != CUDA_SUCCESS) free(call);                                                            \
    return r;                                                                                     \
  }
STASIS_HOST_CALLS()
STASIS_HOST_CALLS(_ptsz)
#undef STASIS_HOST_CALLS

}  // namespace hook
}  // namespace stasis::agent
