#include "agent/cuda/floor.h"

#include "agent/cuda/contexts.h"
#include "agent/cuda/memory.h"

namespace stasis::agent {
namespace {

// The driver rounds up to its minimum. Measured: lowering 1024 to 16 halves the size of an idle
// context.
constexpr size_t kLowest = 16;

struct Lowered {
  CUcontext context;
  CUdevice device;
  size_t own;  // the limit that the program has set
  uint64_t bytes;
};

Vector<Lowered> g_lowered;

size_t IndexOf(CUcontext context) {
  return g_lowered.FindIf([&](const Lowered& lowered) { return lowered.context == context; });
}

uint64_t FreeBytes() {
  size_t free = 0, total = 0;
  return real::cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
}

void Forget(CUcontext context) {
  size_t i = IndexOf(context);
  if (i < g_lowered.size()) g_lowered.Erase(i);
}

void Lower(CUcontext context, CUdevice device) {
  size_t own = 0;
  if (real::cuCtxSetCurrent(context) != CUDA_SUCCESS ||
      real::cuCtxGetLimit(&own, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS || own <= kLowest) {
    return;
  }
  if (IndexOf(context) < g_lowered.size() || !g_lowered.Push({context, device, own, 0})) return;
  DeviceAt(device);  // probes the device, so that HelloReply lists it
  const uint64_t before = FreeBytes();
  if (real::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kLowest) != CUDA_SUCCESS) return Forget(context);
  const uint64_t after = FreeBytes();
  if (after > before) g_lowered[IndexOf(context)].bytes = after - before;
}

}  // namespace

void LowerFloor() {
  Vector<ContextEntry> contexts;
  if (ListContexts(&contexts)) {
    for (const ContextEntry& entry : contexts) Lower(entry.context, entry.device);
  }
  contexts.Free();
}

CUresult RaiseFloor() {
  CUresult error = CUDA_SUCCESS;
  for (size_t i = g_lowered.size(); i-- > 0;) {
    const Lowered lowered = g_lowered[i];
    CUresult r = real::cuCtxSetCurrent(lowered.context);
    if (r == CUDA_SUCCESS) r = real::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, lowered.own);
    if (r == CUDA_SUCCESS) {
      Forget(lowered.context);
    } else if (error == CUDA_SUCCESS) {
      error = r;
    }
  }
  return error;
}

uint64_t FloorBytes(CUdevice device) {
  uint64_t bytes = 0;
  for (const Lowered& lowered : g_lowered) bytes += lowered.device == device ? lowered.bytes : 0;
  return bytes;
}

void ResetFloor() { g_lowered.AbandonAfterFork(); }

}  // namespace stasis::agent
