#include "agent/cuda/stream_order.h"

#include <cassert>

#include "agent/control.h"
#include "agent/cuda/allocate.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/driver_memory.h"
#include "agent/cuda/ipc_events.h"
#include "agent/cuda/pools.h"
#include "agent/gate.h"

namespace stasis::agent {
namespace {

// The driver's calls on a stream. In the _ptsz variants, a null stream is the calling thread's
// default stream.
struct Calls {
  CUresult (*context)(CUstream, CUcontext*);
  CUresult (*id)(CUstream, unsigned long long*);
  CUresult (*capturing)(CUstream, CUstreamCaptureStatus*);
  CUresult (*record)(CUevent, CUstream);
  CUresult (*wait)(CUstream, CUevent, unsigned);
  CUresult (*synchronize)(CUstream);
  CUresult (*alloc)(CUdeviceptr*, size_t, CUstream);
  CUresult (*alloc_from)(CUdeviceptr*, size_t, CUmemoryPool, CUstream);
  CUresult (*free)(CUdeviceptr, CUstream);
};
#define STASIS_CALLS(suffix)                                                                      \
  {                                                                                               \
    real::cuStreamGetCtx##suffix, real::cuStreamGetId##suffix, real::cuStreamIsCapturing##suffix, \
        real::cuEventRecord##suffix, real::cuStreamWaitEvent##suffix,                             \
        real::cuStreamSynchronize##suffix, real::cuMemAllocAsync##suffix,                         \
        real::cuMemAllocFromPoolAsync##suffix, real::cuMemFreeAsync##suffix                       \
  }
constexpr Calls kLegacy = STASIS_CALLS();
constexpr Calls kPerThread = STASIS_CALLS(_ptsz);
#undef STASIS_CALLS

constexpr uint64_t kUnit = 512;  // the unused part of a split block begins at a multiple of this

// A block that was freed in stream order.
struct Pending {
  Region* region;
  uint64_t offset;  // the block's offset in the region
  CUevent event;
  CUcontext context;  // the context of the event and the stream
  uint64_t stream;    // cuStreamGetId; 0: unknown
};

struct FreeEvent {
  CUevent event;
  CUcontext context;
};

Vector<Pending> g_pending;  // in the order of the frees
Vector<FreeEvent> g_events;
constexpr size_t kManyEvents = 256;
uint32_t g_awaiting = 0;  // threads that wait for an event; no event is destroyed meanwhile

// Freed blocks. The caller of the functions from here to FreeBehind holds the mutex.

void KeepEvent(CUevent event, CUcontext context) {
  const bool many = g_events.size() >= kManyEvents && g_awaiting == 0;
  if (!many && g_events.Push({event, context})) return;
  if (g_awaiting == 0) real::cuEventDestroy_v2(event);
}

CUevent TakeEvent(CUcontext context) {
  for (size_t i = g_events.size(); i-- > 0;) {
    if (g_events[i].context != context) continue;
    CUevent event = g_events[i].event;
    g_events.Erase(i);
    return event;
  }
  return nullptr;
}

Block* BlockOf(const Pending& pending) {
  Region* region = pending.region;
  size_t b = region->blocks.LowerBound([&](const Block& x) { return x.offset < pending.offset; });
  // A block stays in its region, marked as freed, as long as it is pending.
  assert(b < region->blocks.size() && region->blocks[b].offset == pending.offset &&
         region->blocks[b].freed);
  return &region->blocks[b];
}

// Frees the block of a pending entry whose event has completed.
void Finish(size_t i) {
  Pending pending = g_pending[i];
  EraseBlock(pending.region, BlockOf(pending));
  g_pending.Erase(i);
  KeepEvent(pending.event, pending.context);
}

// Takes a block that `stream` has freed. With `wait`, takes a block that any stream has freed:
// `wait` is called with the event of the free, and must make the new use wait for it. The unused
// rest of the block stays pending.
bool TakePending(Pool* pool, uint64_t bytes, uint64_t stream, bool small_only, CUdeviceptr* out,
                 bool (*wait)(CUevent, void*), void* argument) {
  size_t best = g_pending.size();
  uint64_t best_bytes = 0;
  for (size_t i = 0; i < g_pending.size(); ++i) {
    const Pending& pending = g_pending[i];
    if (pending.region->pool != pool || (wait == nullptr && pending.stream != stream) ||
        (small_only && !pending.region->slab)) {
      continue;
    }
    const Block* block = BlockOf(pending);
    if (block->bytes < bytes || (best < g_pending.size() && block->bytes >= best_bytes)) continue;
    if (bytes >= kGranularity && block->offset % kGranularity != 0) continue;
    best = i;
    best_bytes = block->bytes;
  }
  if (best == g_pending.size()) return false;
  Pending& pending = g_pending[best];
  Region* region = pending.region;
  if (wait != nullptr && !wait(pending.event, argument)) return false;
  Block* block = BlockOf(pending);
  const Block taken{block->offset, bytes, NextBufferId(), false};
  const uint64_t rest = (bytes + kUnit - 1) / kUnit * kUnit;
  if (rest < block->bytes) {
    size_t at = size_t(block - region->blocks.begin());
    if (!region->blocks.Reserve(region->blocks.size() + 1)) return false;
    region->blocks[at].offset += rest;
    region->blocks[at].bytes -= rest;
    pending.offset += rest;
    region->blocks.Insert(at, taken);
  } else {
    *block = taken;
    Pending done = pending;
    g_pending.Erase(best);
    KeepEvent(done.event, done.context);
  }
  region->used += bytes;
  *out = region->address + taken.offset;
  return true;
}

CUresult FreeBehind(Found found, CUevent event, CUcontext context, uint64_t stream) {
  if (!g_pending.Push({found.region, found.block->offset, event, context, stream})) {
    KeepEvent(event, context);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  found.block->freed = true;
  found.region->used -= found.block->bytes;
  found.region->pool->used -= found.block->bytes;
  LookAt(found.region->pool);
  return CUDA_SUCCESS;
}

// Records an event of the stream's context in the stream.
CUresult Record(const Calls& calls, CUstream stream, CUcontext context, CUevent* out) {
  CUcontext current = nullptr;
  CUresult r = real::cuCtxGetCurrent(&current);
  const bool push = r == CUDA_SUCCESS && current != context;
  if (push) r = real::cuCtxPushCurrent_v2(context);
  if (r != CUDA_SUCCESS) return r;
  {
    Lock lock(g_memory_mutex);
    *out = TakeEvent(context);
  }
  if (*out == nullptr) r = real::cuEventCreate(out, CU_EVENT_DISABLE_TIMING);
  if (r == CUDA_SUCCESS) r = calls.record(*out, stream);
  if (push) real::cuCtxPopCurrent_v2(&current);
  if (r != CUDA_SUCCESS && *out != nullptr) real::cuEventDestroy_v2(*out);
  return r;
}

bool IsCapturing(const Calls& calls, CUstream stream) {
  if (CapturesOpen() == 0) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return calls.capturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

struct Waiter {
  const Calls* calls;
  CUstream stream;
};
bool WaitInStream(CUevent event, void* argument) {
  auto* waiter = static_cast<Waiter*>(argument);
  return waiter->calls->wait(waiter->stream, event, 0) == CUDA_SUCCESS;
}

CUresult TryAllocAsync(const Calls& calls, CUdeviceptr* ptr, size_t bytes, CUmemoryPool handle,
                       bool from_pool, CUstream stream, CUdevice* waits_on) {
  auto plain = [&] {
    CUresult r =
        from_pool ? calls.alloc_from(ptr, bytes, handle, stream) : calls.alloc(ptr, bytes, stream);
    if (r == CUDA_SUCCESS) CountDriverMemory(DriverKind::kPool, *ptr, bytes);
    return r;
  };
  CUcontext context = nullptr, popped = nullptr;
  unsigned long long id = 0;
  // The driver allocates the memory of graphs.
  if (ptr == nullptr || bytes == 0 || bytes > UINT64_MAX / 2 || IsCapturing(calls, stream) ||
      calls.context(stream, &context) != CUDA_SUCCESS || context == nullptr) {
    return plain();
  }
  CUdevice device = -1;
  if (real::cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return plain();
  CUresult r = real::cuCtxGetDevice(&device);
  real::cuCtxPopCurrent_v2(&popped);
  if (r == CUDA_SUCCESS && !from_pool) r = real::cuDeviceGetMemPool(&handle, device);
  if (r != CUDA_SUCCESS) return plain();
  if (calls.id(stream, &id) != CUDA_SUCCESS) id = 0;
  NoteContext(context, device);
  EnsureControl();
  Waiter waiter{&calls, stream};
  Relaxed relaxed;
  LearnPool(handle);
  do {
    const PoolUse use(handle);
    if (use.pool == nullptr) break;
    device = *waits_on = use.pool->device;
    r = AllocateIn(use.pool, bytes, id, ptr);
    if (r == CUDA_SUCCESS) return r;
    if (r != CUDA_ERROR_OUT_OF_MEMORY) break;
    int reuse = 0;
    if (real::cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                    &reuse) != CUDA_SUCCESS ||
        reuse == 0) {
      continue;
    }
    Lock lock(g_memory_mutex);
    if (TakePending(use.pool, bytes, 0, false, ptr, WaitInStream, &waiter)) {
      CountUse(use.pool, bytes);
      return CUDA_SUCCESS;
    }
  } while (FindMemoryInPools(device));
  return plain();
}

CUresult AllocAsync(const Calls& calls, CUdeviceptr* ptr, size_t bytes, CUmemoryPool handle,
                    bool from_pool, CUstream stream) {
  // Memory of a pool that the driver serves does not wait: it may be at the pool's own limit.
  Need need{bytes};
  return AllocateOrWait(need, [&] {
    need.device = Need::kNone;
    return TryAllocAsync(calls, ptr, bytes, handle, from_pool, stream, &need.device);
  });
}

CUresult TryFreeAsync(const Calls& calls, CUdeviceptr ptr, CUstream stream) {
  Region* region = nullptr;
  {
    Lock lock(g_memory_mutex);
    Found found = FindAllocation(ptr);
    if (found.block != nullptr && found.region->address + found.block->offset == ptr) {
      region = found.region;
    }
  }
  // cuMemFreeAsync also accepts memory from cuMemAlloc. The hook of cuMemFree waits for all work
  // and then frees the memory, which is later than requested but never too early.
  if (region != nullptr && region->pool == nullptr) return hook::cuMemFree_v2(ptr);
  // In a capture, only memory of the graph can be freed; the driver returns the error for other
  // memory.
  if (region == nullptr || IsCapturing(calls, stream)) {
    return FreePlain(ptr, [&] { return calls.free(ptr, stream); });
  }
  CUcontext context = nullptr;
  unsigned long long id = 0;
  CUevent event = nullptr;
  Relaxed relaxed;
  CUresult r = calls.context(stream, &context);
  if (r == CUDA_SUCCESS && calls.id(stream, &id) != CUDA_SUCCESS) id = 0;
  if (r == CUDA_SUCCESS) r = Record(calls, stream, context, &event);
  // Without an event that marks this point of the stream, wait for the stream.
  if (r != CUDA_SUCCESS) {
    event = nullptr;
    if (r = calls.synchronize(stream); r != CUDA_SUCCESS) return r;
  }
  Lock lock(g_memory_mutex);
  Found found = FindAllocation(ptr);
  if (found.block == nullptr || found.region->pool == nullptr ||
      found.region->address + found.block->offset != ptr) {
    if (event != nullptr) KeepEvent(event, context);
    return CUDA_ERROR_INVALID_VALUE;  // freed by another thread
  }
  if (event == nullptr) {
    FreePoolBlock(found);
    return CUDA_SUCCESS;
  }
  return FreeBehind(found, event, context, id);
}

CUresult FreeAsync(const Calls& calls, CUdeviceptr ptr, CUstream stream) {
  const CUresult r = TryFreeAsync(calls, ptr, stream);
  if (r == CUDA_SUCCESS) room::NoteFree();
  return r;
}

}  // namespace

// The events of one stream complete in order. After the first one that has not completed, the other
// frees of its stream are skipped.
void ReapFreed() {
  uint64_t busy[8];
  size_t count = 0;
  for (size_t i = 0; i < g_pending.size();) {
    bool skip = false;
    for (size_t b = 0; b < count; ++b) skip |= busy[b] == g_pending[i].stream;
    if (!skip && real::cuEventQuery(g_pending[i].event) == CUDA_SUCCESS) {
      Finish(i);
      continue;
    }
    if (!skip && count < 8 && g_pending[i].stream != 0) busy[count++] = g_pending[i].stream;
    ++i;
  }
}

bool TakeFreed(Pool* pool, uint64_t bytes, uint64_t stream, bool small_only, CUdeviceptr* out) {
  return TakePending(pool, bytes, stream, small_only, out, nullptr, nullptr);
}

bool AwaitFreeOn(CUdevice device) {
  CUevent event = nullptr;
  {
    Lock lock(g_memory_mutex);
    for (size_t i = 0; i < g_pending.size() && event == nullptr; ++i) {
      if (g_pending[i].region->device == device) event = g_pending[i].event;
    }
    if (event == nullptr) return false;
    ++g_awaiting;
  }
  const CUresult r = real::cuEventSynchronize(event);
  Lock lock(g_memory_mutex);
  --g_awaiting;
  return r == CUDA_SUCCESS;
}

void FinishFreesOn(CUdevice device) {
  for (size_t i = g_pending.size(); i-- > 0;) {
    if (g_pending[i].region->device == device) Finish(i);
  }
}

void LookAtFreed() {
  for (const Pending& pending : g_pending) LookAt(pending.region->pool);
}

void BeforeContextEnds(CUcontext context) {
  bool any = false;
  {
    Lock lock(g_memory_mutex);
    for (const Pending& pending : g_pending) any |= pending.context == context;
  }
  // Events are destroyed with their context.
  if (any && SynchronizeContext(context) != CUDA_SUCCESS) return;
  Lock lock(g_memory_mutex);
  for (size_t i = g_pending.size(); i-- > 0;) {
    if (g_pending[i].context == context) Finish(i);
  }
  g_events.EraseIf([&](const FreeEvent& free) {
    if (free.context != context) return false;
    real::cuEventDestroy_v2(free.event);
    return true;
  });
}

void ContextEnded(CUcontext context) {
  g_pending.EraseIf([&](const Pending& pending) {
    if (pending.context != context) return false;
    EraseBlock(pending.region, BlockOf(pending));
    return true;
  });
  g_events.EraseIf([&](const FreeEvent& free) { return free.context == context; });
}

void ResetStreamOrder() {
  g_pending.AbandonAfterFork();
  g_events.AbandonAfterFork();
  g_awaiting = 0;
}

namespace hook {

#define STASIS_STREAM_ORDERED(suffix, calls)                                                  \
  CUresult cuMemAllocAsync##suffix(CUdeviceptr* ptr, size_t bytes, CUstream stream) {         \
    return AllocAsync(calls, ptr, bytes, nullptr, false, stream);                             \
  }                                                                                           \
  CUresult cuMemAllocFromPoolAsync##suffix(CUdeviceptr* ptr, size_t bytes, CUmemoryPool pool, \
                                           CUstream stream) {                                 \
    return AllocAsync(calls, ptr, bytes, pool, true, stream);                                 \
  }                                                                                           \
  CUresult cuMemFreeAsync##suffix(CUdeviceptr ptr, CUstream stream) {                         \
    return FreeAsync(calls, ptr, stream);                                                     \
  }
STASIS_STREAM_ORDERED(, kLegacy)
STASIS_STREAM_ORDERED(_ptsz, kPerThread)
#undef STASIS_STREAM_ORDERED

}  // namespace hook

// Defines the hook of a call by which the program waits for the GPU. After such a wait, a pool may
// hold more than its threshold, which ReleaseSoon corrects.
#define STASIS_WAIT(function, symbol, parameters, arguments)                              \
  function parameters {                                                                   \
    CUresult r;                                                                           \
    {                                                                                     \
      gate::Ask asking;                                                                   \
      r = real::symbol arguments;                                                         \
    }                                                                                     \
    if (r == CUDA_SUCCESS && g_pools_look.load(std::memory_order_relaxed)) ReleaseSoon(); \
    return r;                                                                             \
  }
STASIS_WAIT(static CUresult SynchronizeEvent, cuEventSynchronize, (CUevent event), (event))
STASIS_WAIT(STASIS_EXPORT CUresult cuStreamSynchronize, cuStreamSynchronize, (CUstream stream),
            (stream))
STASIS_WAIT(STASIS_EXPORT CUresult cuStreamSynchronize_ptsz, cuStreamSynchronize_ptsz,
            (CUstream stream), (stream))
STASIS_WAIT(STASIS_EXPORT CUresult cuCtxSynchronize, cuCtxSynchronize, (), ())
STASIS_WAIT(STASIS_EXPORT CUresult cuCtxSynchronize_v2, cuCtxSynchronize_v2, (CUcontext context),
            (context))

// For an event of another process, waits for the owner's agent: the local event is never recorded.
STASIS_EXPORT CUresult cuEventSynchronize(CUevent event) {
  if (CUresult r = AwaitTheirs(event); r != CUDA_SUCCESS) return r;
  return SynchronizeEvent(event);
}

}  // namespace stasis::agent
