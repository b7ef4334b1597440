#include "agent/cuda/contexts.h"

#include <stdlib.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/allocate.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/ipc_events.h"
#include "agent/cuda/memory.h"
#include "agent/cuda/pools.h"
#include "agent/cuda/stream_order.h"
#include "agent/cuda/visible.h"
#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/thread.h"
#include "agent/vector.h"

namespace stasis::agent {
namespace {

// A thread that waits for one context on request. While a kernel hangs the thread hangs too; it
// serves the next request after the kernel has ended.
struct Drain {
  std::atomic<uint32_t> wanted{0};
  std::atomic<uint32_t> done{0};
  std::atomic<uint32_t> ended{0};  // the context is gone; the thread exits
  std::atomic<CUresult> result{CUDA_SUCCESS};
  CUcontext context = nullptr;
};

struct Context {
  CUcontext handle;
  CUdevice device;
  Drain* drain;
  uint64_t number;  // unlike the handle, never used twice
};

Mutex g_mutex;
Vector<Context> g_contexts;
uint64_t g_last_number = 0;

void* DrainThread(void* argument) {
  auto* drain = static_cast<Drain*>(argument);
  gate::Exempt exempt;
  for (;;) {
    uint32_t wanted = drain->wanted.load();
    if (drain->ended.load() != 0) break;
    if (wanted == drain->done.load()) {
      FutexWait(&drain->wanted, wanted);
      continue;
    }
    CUresult r = real::cuCtxSetCurrent(drain->context);
    if (r == CUDA_SUCCESS) r = real::cuCtxSynchronize();
    drain->result.store(r);
    drain->done.store(wanted);
    FutexWake(&drain->done);
  }
  free(drain);
  return nullptr;
}

Drain* StartDrain(CUcontext context) {
  void* memory = malloc(sizeof(Drain));
  if (memory == nullptr) return nullptr;
  auto* drain = new (memory) Drain;
  drain->context = context;
  if (StartThread("stasis-drain", DrainThread, drain)) return drain;
  free(memory);
  return nullptr;
}

size_t IndexOf(CUcontext context) {
  return g_contexts.FindIf([&](const Context& known) { return known.handle == context; });
}

// Returns 0 if the context is unknown.
uint64_t NumberOf(CUcontext context) {
  Lock lock(g_mutex);
  const size_t i = IndexOf(context);
  return i < g_contexts.size() ? g_contexts[i].number : 0;
}

// Removes the context of this number from the table. Returns false if it is not in the table any
// more.
bool EraseContext(uint64_t number, CUdevice* device) {
  Lock lock(g_mutex);
  const size_t i = g_contexts.FindIf([&](const Context& known) { return known.number == number; });
  if (i == g_contexts.size()) return false;
  if (Drain* drain = g_contexts[i].drain) {
    drain->ended.store(1);
    drain->wanted.fetch_add(1);
    FutexWake(&drain->wanted);
  }
  *device = g_contexts[i].device;
  g_contexts.Erase(i);
  return true;
}

// Drops the context of this number, which has ended, with its memory and events. All of them are
// removed under one lock, because another thread may get a new context with the same handle.
void Forget(CUcontext context, uint64_t number) {
  if (number == 0) return;
  CUdevice device = -1;
  bool known = false;
  MayShare();
  {
    Leaving leaving;
    Lock lock(g_memory_mutex);
    known = EraseContext(number, &device);
    if (known) {
      DropMemoryOf(context, &leaving);
      IpcEventsEndWith(context);
      ContextEnded(context);
    }
  }
  MaySharePassed();
  if (known) FreePoolMemoryOf(device);
}

bool PrimaryIsActive(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  return real::cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

CUcontext PrimaryOf(CUdevice device) {
  // An active primary context is already retained by the program, so a short extra reference
  // changes nothing.
  CUcontext context = nullptr;
  if (!PrimaryIsActive(device) ||
      real::cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) {
    return nullptr;
  }
  real::cuDevicePrimaryCtxRelease_v2(device);
  return context;
}

CUresult Created(CUresult r, CUcontext* context, CUdevice device) {
  if (r != CUDA_SUCCESS) return r;
  NoteContext(*context, device);
  EnsureControl();
  return r;
}

// What a context is assumed to need on the GPU: the driver does not tell. On an H100 one without
// kernels takes 262 MiB (docs/measurements/suspend-and-resume.md).
constexpr uint64_t kContextBytes = uint64_t{512} << 20;

// Calls `create`, which always creates a new context.
template <class F>
CUresult CreateNew(CUcontext* context, CUdevice device, F create) {
  if (IsHidden(device)) return CUDA_ERROR_INVALID_DEVICE;
  const CUresult r = AllocateOrWait({kContextBytes, device}, create);
  // If the table still has a context with this handle, that context has ended, and the thread that
  // ended it has not called Forget yet.
  if (r == CUDA_SUCCESS) Forget(*context, NumberOf(*context));
  return Created(r, context, device);
}

template <class F>
CUresult Destroy(CUcontext context, F destroy) {
  BeforeContextEnds(context);
  const uint64_t number = NumberOf(context);
  const CUresult r = destroy();
  if (r == CUDA_SUCCESS) Forget(context, number);
  return r;
}

}  // namespace

void NoteContext(CUcontext context, CUdevice device) {
  if (context == nullptr) return;
  Lock lock(g_mutex);
  if (IndexOf(context) < g_contexts.size()) return;
  // Without an entry, a suspend would not wait for the work in this context.
  if (!g_contexts.Push({context, device, nullptr, ++g_last_number})) {
    NoteBlocker(agent_protocol::kBlockerUnseenThread, "no memory to record a context");
  }
}

CUresult EndCurrentDevice(CUresult (*reset)()) {
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (real::cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
      real::cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return reset();
  }
  const CUresult r = Destroy(context, reset);
  if (r == CUDA_SUCCESS) NoteContext(context, device);
  return r;
}

CUcontext ContextOn(CUdevice device) {
  Lock lock(g_mutex);
  for (const Context& context : g_contexts) {
    if (context.device == device) return context.handle;
  }
  return nullptr;
}

CUcontext AnyContext() {
  Lock lock(g_mutex);
  return g_contexts.size() > 0 ? g_contexts[0].handle : nullptr;
}

bool ListContexts(Vector<ContextEntry>* out) {
  Lock lock(g_mutex);
  for (const Context& context : g_contexts) {
    if (!out->Push({context.handle, context.device})) return false;
  }
  return true;
}

CUresult SynchronizeContext(CUcontext context) {
  CUcontext current = nullptr;
  if (CUresult r = real::cuCtxGetCurrent(&current); r != CUDA_SUCCESS) return r;
  if (current == context) return real::cuCtxSynchronize();
  if (CUresult r = real::cuCtxPushCurrent_v2(context); r != CUDA_SUCCESS) return r;
  CUresult r = real::cuCtxSynchronize();
  real::cuCtxPopCurrent_v2(&current);
  return r;
}

bool DrainContexts(int64_t deadline_ns, CUresult* error) {
  *error = CUDA_SUCCESS;
  // The gate is closed, so no context is created or destroyed now.
  Lock lock(g_mutex);
  for (Context& context : g_contexts) {
    if (context.drain == nullptr) context.drain = StartDrain(context.handle);
    if (context.drain == nullptr) {
      *error = CUDA_ERROR_OUT_OF_MEMORY;
      return false;
    }
    context.drain->wanted.fetch_add(1);
    FutexWake(&context.drain->wanted);
  }
  for (Context& context : g_contexts) {
    Drain* drain = context.drain;
    for (;;) {
      uint32_t done = drain->done.load();
      if (done == drain->wanted.load()) break;
      int64_t left = deadline_ns - NowNs();
      if (left <= 0) return false;
      FutexWait(&drain->done, done, left);
    }
    if (*error == CUDA_SUCCESS) *error = drain->result.load();
  }
  return *error == CUDA_SUCCESS;
}

void ResetContexts() {
  g_mutex.ResetAfterFork();
  g_contexts.AbandonAfterFork();
}

namespace hook {

CUresult cuCtxCreate(STASIS_P3) {
  return CreateNew(reinterpret_cast<CUcontext*>(a), CUdevice(c),
                   [&] { return real::cuCtxCreate(STASIS_A3); });
}
CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  return CreateNew(context, device, [&] { return real::cuCtxCreate_v2(context, flags, device); });
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* params, int count, unsigned flags,
                        CUdevice device) {
  return CreateNew(context, device,
                   [&] { return real::cuCtxCreate_v3(context, params, count, flags, device); });
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned flags,
                        CUdevice device) {
  return CreateNew(context, device,
                   [&] { return real::cuCtxCreate_v4(context, params, flags, device); });
}
CUresult cuCtxDestroy(STASIS_P1) {
  return Destroy(reinterpret_cast<CUcontext>(a), [&] { return real::cuCtxDestroy(STASIS_A1); });
}
CUresult cuCtxDestroy_v2(CUcontext context) {
  return Destroy(context, [&] { return real::cuCtxDestroy_v2(context); });
}
CUresult cuCtxDetach(CUcontext context) {
  BeforeContextEnds(context);
  const uint64_t number = NumberOf(context);
  CUresult r = real::cuCtxDetach(context);
  unsigned version = 0;
  if (r == CUDA_SUCCESS && real::cuCtxGetApiVersion(context, &version) != CUDA_SUCCESS) {
    Forget(context, number);
  }
  return r;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (IsHidden(device)) return CUDA_ERROR_INVALID_DEVICE;
  // An active context needs no memory.
  const Need need = PrimaryIsActive(device) ? Need{} : Need{kContextBytes, device};
  const CUresult r =
      AllocateOrWait(need, [&] { return real::cuDevicePrimaryCtxRetain(context, device); });
  return Created(r, context, device);
}

// A primary context ends with its last release, or at once with a reset.
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUcontext primary = PrimaryOf(device);
  // Call BeforeContextEnds before every release, because the agent cannot tell which release is the
  // last.
  BeforeContextEnds(primary);
  const uint64_t number = NumberOf(primary);
  CUresult r = real::cuDevicePrimaryCtxRelease_v2(device);
  if (r == CUDA_SUCCESS && !PrimaryIsActive(device)) Forget(primary, number);
  return r;
}
CUresult cuDevicePrimaryCtxRelease(STASIS_P1) {
  return hook::cuDevicePrimaryCtxRelease_v2(CUdevice(a));
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  CUcontext primary = PrimaryOf(device);
  return Destroy(primary, [&] { return real::cuDevicePrimaryCtxReset_v2(device); });
}
CUresult cuDevicePrimaryCtxReset(STASIS_P1) {
  return hook::cuDevicePrimaryCtxReset_v2(CUdevice(a));
}

// Lets the current context's device access the memory of `peer`. The driver's call alone does not
// grant access to memory from handles.
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CUresult r = real::cuCtxEnablePeerAccess(peer, flags);
  CUdevice mine = -1;
  if (r != CUDA_SUCCESS || real::cuCtxGetDevice(&mine) != CUDA_SUCCESS) return r;
  CUdevice theirs = -1;
  CUcontext popped = nullptr;
  if (real::cuCtxPushCurrent_v2(peer) != CUDA_SUCCESS) return r;
  CUresult known = real::cuCtxGetDevice(&theirs);
  real::cuCtxPopCurrent_v2(&popped);
  if (known == CUDA_SUCCESS) GrantPeer(theirs, mine);
  return r;
}

}  // namespace hook

}  // namespace stasis::agent
