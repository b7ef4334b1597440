#include "agent/cuda/pools.h"

#include <stdlib.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/driver_memory.h"
#include "agent/gate.h"
#include "agent/thread.h"

namespace stasis::agent {
namespace {

constexpr uint64_t kUnit = 512;  // what is left of a block begins at a multiple

// A block that was freed in stream order.
struct Pending {
  Region* region;
  uint64_t offset;  // of its block
  CUevent event;
  CUcontext context;  // of the event and the stream
  uint64_t stream;    // cuStreamGetId; 0: unknown
};

struct FreeEvent {
  CUevent event;
  CUcontext context;
};

Vector<Pool*> g_pools;
Vector<Pending> g_pending;  // in the order of the frees
Vector<FreeEvent> g_events;
constexpr size_t kManyEvents = 256;

// Some pool may hold more than its threshold. Looked at after every wait of the program.
std::atomic<bool> g_look{false};
std::atomic<uint32_t> g_release_wanted{0};  // counts
std::atomic<uint32_t> g_releasing{0};       // how many are giving regions back right now
std::atomic<uint32_t> g_release_thread{0};  // 0 none, 1 being started, 2 there

// The driver's calls on a stream, whose null means the thread's own in the _ptsz ones.
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

// While another thread captures, what we call could spoil its capture, which the program's own call
// would not. In this mode it does not.
struct Relaxed {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  Relaxed() { real::cuThreadExchangeStreamCaptureMode(&mode); }
  ~Relaxed() { real::cuThreadExchangeStreamCaptureMode(&mode); }
  Relaxed(const Relaxed&) = delete;
};

// ---- pools; from here to "releasing" the caller holds the mutex

Pool* Find(CUmemoryPool handle) {
  for (Pool* pool : g_pools) {
    if (handle != nullptr && pool->handle == handle) return pool;
  }
  return nullptr;
}

Pool* Know(CUmemoryPool handle, CUdevice device, bool carried) {
  auto* pool = static_cast<Pool*>(calloc(1, sizeof(Pool)));
  if (pool == nullptr || !g_pools.Push(pool)) {
    free(pool);
    return nullptr;
  }
  pool->handle = handle;
  pool->device = device;
  Device* d = DeviceAt(device);
  pool->carried = carried && d != nullptr && d->fast;
  real::cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &pool->threshold);
  return pool;
}

// null: none that we know, as one of another process.
Pool* PoolOf(CUmemoryPool handle) {
  if (Pool* pool = Find(handle)) return pool;
  int count = 0;
  if (real::cuDeviceGetCount(&count) != CUDA_SUCCESS) return nullptr;
  for (CUdevice device = 0; device < count; ++device) {
    CUmemoryPool known = nullptr;
    if (real::cuDeviceGetDefaultMemPool(&known, device) != CUDA_SUCCESS || known != handle) {
      continue;
    }
    return Know(handle, device, true);
  }
  return nullptr;
}

bool HasRegions(const Pool* pool) {
  for (const Region* region : g_regions) {
    if (region->pool == pool) return true;
  }
  return false;
}

// ---- blocks that were freed

Block* BlockOf(const Pending& pending) {
  Region* region = pending.region;
  size_t b = region->blocks.LowerBound([&](const Block& x) { return x.offset < pending.offset; });
  return &region->blocks[b];
}

void Recycle(const Pending& pending) {
  if (g_events.size() >= kManyEvents || !g_events.Push({pending.event, pending.context})) {
    real::cuEventDestroy_v2(pending.event);
  }
}

void EraseBlock(Region* region, Block* block) {
  region->blocks.Erase(size_t(block - region->blocks.begin()));
  region->fits = region->bytes;
}

// Its room is free.
void Finish(size_t i) {
  Pending pending = g_pending[i];
  EraseBlock(pending.region, BlockOf(pending));
  g_pending.Erase(i);
  Recycle(pending);
}

// Takes note of the frees that have come to pass. Within a stream they do so in their order.
void Reap() {
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

// A block that `stream` has freed (or, with 0, any stream: then *event is what must be waited for).
// What was behind it in that stream is behind the new one too.
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
    Recycle(done);
  }
  region->used += bytes;
  *out = region->address + taken.offset;
  return true;
}

// ---- allocating

void CountUse(Pool* pool, uint64_t bytes) {
  pool->used += bytes;
  if (pool->used > pool->used_high) pool->used_high = pool->used;
}

CUresult Grow(Pool* pool, uint64_t bytes, bool slab, Region** out) {
  CUresult r = MakeRegion(bytes, pool->device, nullptr, pool, slab, out);
  if (r != CUDA_SUCCESS) return r;
  pool->reserved += bytes;
  if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
  return r;
}

// The smallest region that has room: large pieces are kept for large requests.
bool TakeFree(Pool* pool, uint64_t bytes, bool slabs, CUdeviceptr* out) {
  Region* tried = nullptr;
  for (;;) {
    Region* best = nullptr;
    for (Region* region : g_regions) {
      if (region->pool != pool || region->slab != slabs || region->fits < bytes) continue;
      if (best == nullptr || region->bytes < best->bytes) best = region;
    }
    // A region that turns out to be too full says so by `fits`.
    if (best == nullptr || best == tried) return false;
    if (Carve(best, bytes, out)) return true;
    tried = best->fits < bytes ? nullptr : best;
  }
}

CUresult Allocate(Pool* pool, uint64_t bytes, uint64_t stream, CUdeviceptr* out) {
  const bool small = bytes < kLarge;
  Reap();
  if ((stream != 0 && TakePending(pool, bytes, stream, small, out, nullptr, nullptr)) ||
      TakeFree(pool, bytes, small, out)) {
    return CUDA_SUCCESS;
  }
  Region* region = nullptr;
  CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
  if (small) {
    r = Grow(pool, DeviceAt(pool->device)->region_bytes < kManyBytes ? kSmallSlab : kSlab, true,
             &region);
  }
  if (r == CUDA_ERROR_OUT_OF_MEMORY) {
    if (small && TakeFree(pool, bytes, false, out)) return CUDA_SUCCESS;
    r = Grow(pool, (bytes + kGranularity - 1) / kGranularity * kGranularity, false, &region);
  }
  if (r != CUDA_SUCCESS) return r;
  return Carve(region, bytes, out) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// ---- releasing

// It may have too much after the program's next wait.
void LookAt(const Pool* pool) {
  if (pool->reserved > pool->threshold) g_look.store(true, std::memory_order_relaxed);
}

struct Release {
  CUdevice device;  // -1: all
  Pool* pool;       // null: all
  bool all;         // whatever the threshold says
  uint64_t keep;    // of `pool`; else the threshold's
};

// Takes the regions that are to go out of the tables. They are still the driver's.
void Collect(const Release& what, Vector<Region*>* gone) {
  g_look.store(false, std::memory_order_relaxed);
  Reap();
  for (size_t p = g_pools.size(); p-- > 0;) {
    Pool* pool = g_pools[p];
    const uint64_t keep = pool->handle == nullptr || what.all ? 0
                          : what.pool != nullptr              ? what.keep
                                                              : pool->threshold;
    if ((what.pool == nullptr || what.pool == pool) &&
        (what.device < 0 || what.device == pool->device)) {
      for (size_t i = g_regions.size(); i-- > 0 && pool->reserved > keep;) {
        Region* region = g_regions[i];
        if (region->pool != pool || region->blocks.size() > 0 || !gone->Push(region)) continue;
        g_regions.Erase(i);
        pool->reserved -= region->bytes;
        DeviceAt(region->device)->region_bytes -= region->bytes;
      }
    }
    if (pool->handle == nullptr && !HasRegions(pool)) {
      g_pools.Erase(p);
      free(pool);
    }
  }
  for (const Pending& pending : g_pending) LookAt(pending.region->pool);
}

// Not under the mutex: unmapping may wait for work of any stream. true: something went.
bool ReleaseNow(const Release& what) {
  Relaxed relaxed;
  Vector<Region*> gone;
  {
    Lock lock(g_memory_mutex);
    g_releasing.fetch_add(1);
    Collect(what, &gone);
  }
  for (Region* region : gone) GiveBack(region);
  const bool any = gone.size() > 0;
  gone.Free();
  g_releasing.fetch_sub(1);
  FutexWake(&g_releasing);
  return any;
}

void* ReleaseThread(void*) {
  uint32_t done = 0;
  for (;;) {
    uint32_t wanted = g_release_wanted.load();
    if (wanted == done) {
      FutexWait(&g_release_wanted, wanted);
      continue;
    }
    done = wanted;
    gate::Pass inside;
    if (CUcontext context = AnyContext()) real::cuCtxSetCurrent(context);
    ReleaseNow({-1, nullptr, false, 0});
  }
  return nullptr;
}

// After a wait of the program, which passed no gate. The thread that waited goes on at once.
void AfterWait(CUresult r) {
  if (r != CUDA_SUCCESS || !g_look.load(std::memory_order_relaxed)) return;
  uint32_t none = 0;
  if (g_release_thread.compare_exchange_strong(none, 1)) {
    g_release_thread.store(StartThread("stasis-pools", ReleaseThread, nullptr) ? 2 : 0);
  }
  g_release_wanted.fetch_add(1);
  FutexWake(&g_release_wanted);
}

// ---- what a program calls

// An event of the stream's context, recorded now.
CUresult Record(const Calls& calls, CUstream stream, CUcontext context, CUevent* out) {
  *out = nullptr;
  {
    Lock lock(g_memory_mutex);
    for (size_t i = g_events.size(); i-- > 0 && *out == nullptr;) {
      if (g_events[i].context != context) continue;
      *out = g_events[i].event;
      g_events.Erase(i);
    }
  }
  CUcontext current = nullptr;
  CUresult r = real::cuCtxGetCurrent(&current);
  const bool push = r == CUDA_SUCCESS && current != context;
  if (push) r = real::cuCtxPushCurrent_v2(context);
  if (r != CUDA_SUCCESS) return r;
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

CUresult AllocAsync(const Calls& calls, CUdeviceptr* ptr, size_t bytes, CUmemoryPool handle,
                    bool from_pool, CUstream stream) {
  auto plain = [&] {
    CUresult r =
        from_pool ? calls.alloc_from(ptr, bytes, handle, stream) : calls.alloc(ptr, bytes, stream);
    if (r == CUDA_SUCCESS) CountDriverMemory(DriverKind::kPool, *ptr, bytes);
    return r;
  };
  CUcontext context = nullptr, popped = nullptr;
  unsigned long long id = 0;
  // A graph's memory is the driver's business.
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
  do {
    Lock lock(g_memory_mutex);
    Pool* pool = PoolOf(handle);
    if (pool == nullptr || !pool->carried) break;
    device = pool->device;
    r = Allocate(pool, bytes, id, ptr);
    int reuse = 0;
    if (r == CUDA_ERROR_OUT_OF_MEMORY &&
        real::cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                    &reuse) == CUDA_SUCCESS &&
        reuse != 0 && TakePending(pool, bytes, 0, false, ptr, WaitInStream, &waiter)) {
      r = CUDA_SUCCESS;
    }
    if (r == CUDA_SUCCESS) {
      CountUse(pool, bytes);
      return r;
    }
    if (r != CUDA_ERROR_OUT_OF_MEMORY) break;
  } while (FindMemoryInPools(device));
  return plain();
}

CUresult FreeAsync(const Calls& calls, CUdeviceptr ptr, CUstream stream) {
  Region* region = nullptr;
  {
    Lock lock(g_memory_mutex);
    Found found = FindAllocation(ptr);
    if (found.block != nullptr && found.region->address + found.block->offset == ptr) {
      region = found.region;
    }
  }
  // It may also be given what cuMemAlloc gave. That is freed at once, after waiting for all work:
  // later than asked for, never too early.
  if (region != nullptr && region->pool == nullptr) return hook::cuMemFree_v2(ptr);
  // In a capture only a graph's own memory can be freed, and the driver says so.
  if (region == nullptr || IsCapturing(calls, stream)) {
    CUresult r = calls.free(ptr, stream);
    if (r == CUDA_SUCCESS) ForgetPlain(ptr);
    return r;
  }
  CUcontext context = nullptr;
  unsigned long long id = 0;
  CUevent event = nullptr;
  Relaxed relaxed;
  CUresult r = calls.context(stream, &context);
  if (r == CUDA_SUCCESS && calls.id(stream, &id) != CUDA_SUCCESS) id = 0;
  if (r == CUDA_SUCCESS) r = Record(calls, stream, context, &event);
  // A stream whose progress cannot be told is waited for.
  if (r != CUDA_SUCCESS) {
    event = nullptr;
    if (r = calls.synchronize(stream); r != CUDA_SUCCESS) return r;
  }
  Lock lock(g_memory_mutex);
  Found found = FindAllocation(ptr);
  if (found.block == nullptr || found.region->pool == nullptr ||
      found.region->address + found.block->offset != ptr) {
    if (event != nullptr) Recycle({nullptr, 0, event, context, 0});
    return CUDA_ERROR_INVALID_VALUE;  // somebody else was faster
  }
  const Pending pending{found.region, found.block->offset, event, context, id};
  if (event == nullptr) {
    FreePoolBlock(found);
    return CUDA_SUCCESS;
  }
  if (!g_pending.Push(pending)) {  // it stays the program's
    Recycle(pending);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  found.block->freed = true;
  found.region->used -= found.block->bytes;
  found.region->pool->used -= found.block->bytes;
  LookAt(found.region->pool);
  return CUDA_SUCCESS;
}

}  // namespace

void FreePoolBlock(Found found) {
  found.region->used -= found.block->bytes;
  found.region->pool->used -= found.block->bytes;
  EraseBlock(found.region, found.block);
  LookAt(found.region->pool);
}

bool FindMemoryInPools(CUdevice device) {
  if (ReleaseNow({device, nullptr, true, 0})) return true;
  if (g_releasing.load() != 0) {
    for (uint32_t n; (n = g_releasing.load()) != 0;) FutexWait(&g_releasing, n);
    return true;
  }
  CUevent event = nullptr;
  Relaxed relaxed;
  {
    Lock lock(g_memory_mutex);
    for (size_t i = 0; i < g_pending.size() && event == nullptr; ++i) {
      if (g_pending[i].region->device == device) event = g_pending[i].event;
    }
  }
  return event != nullptr && real::cuEventSynchronize(event) == CUDA_SUCCESS;
}

void BeforeContextEnds(CUcontext context) {
  bool any = false;
  {
    Lock lock(g_memory_mutex);
    for (const Pending& pending : g_pending) any |= pending.context == context;
  }
  // An event dies with its context.
  if (any && SynchronizeContext(context) != CUDA_SUCCESS) return;
  Lock lock(g_memory_mutex);
  for (size_t i = g_pending.size(); i-- > 0;) {
    if (g_pending[i].context == context) Finish(i);
  }
  for (size_t i = g_events.size(); i-- > 0;) {
    if (g_events[i].context != context) continue;
    real::cuEventDestroy_v2(g_events[i].event);
    g_events.Erase(i);
  }
}

void ContextEnded(CUcontext context) {
  Lock lock(g_memory_mutex);
  for (size_t i = g_pending.size(); i-- > 0;) {
    if (g_pending[i].context != context) continue;
    EraseBlock(g_pending[i].region, BlockOf(g_pending[i]));
    g_pending.Erase(i);
  }
  for (size_t i = g_events.size(); i-- > 0;) {
    if (g_events[i].context == context) g_events.Erase(i);
  }
}

void FreePoolMemoryOf(CUdevice device) {
  Vector<Region*> gone;
  {
    Lock lock(g_memory_mutex);
    for (size_t i = g_pending.size(); i-- > 0;) {
      if (g_pending[i].region->device == device) Finish(i);
    }
    for (size_t i = g_regions.size(); i-- > 0;) {
      Region* region = g_regions[i];
      if (region->pool == nullptr || region->device != device) continue;
      region->pool->used -= region->used;
      region->used = 0;
      region->blocks.Clear();
    }
    Collect({device, nullptr, true, 0}, &gone);
  }
  for (Region* region : gone) GiveBack(region);
  gone.Free();
}

void ReleaseUnusedPoolMemory() {
  if (CUcontext context = AnyContext()) real::cuCtxSetCurrent(context);
  ReleaseNow({-1, nullptr, true, 0});
}

void ResetPools() {
  g_pools.AbandonAfterFork();
  g_pending.AbandonAfterFork();
  g_events.AbandonAfterFork();
  g_look.store(false);
  g_releasing.store(0);
  g_release_thread.store(0);
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

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  CUresult r = real::cuMemPoolCreate(pool, props);
  if (r != CUDA_SUCCESS) return r;
  EnsureControl();
  // One that other processes may open, that is bounded, or that lives elsewhere is the driver's.
  const bool carried = props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                       props->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                       props->handleTypes == CU_MEM_HANDLE_TYPE_NONE && props->maxSize == 0 &&
                       props->usage == 0;
  Lock lock(g_memory_mutex);
  Know(*pool, carried ? props->location.id : 0, carried);
  return r;
}

// What it has given out stays until it is freed.
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  CUresult r = real::cuMemPoolDestroy(handle);
  if (r != CUDA_SUCCESS) return r;
  {
    Lock lock(g_memory_mutex);
    Pool* pool = Find(handle);
    if (pool == nullptr) return r;
    pool->handle = nullptr;
    pool->threshold = 0;
  }
  ReleaseNow({-1, nullptr, false, 0});
  return r;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  CUresult r = real::cuMemPoolTrimTo(handle, keep);
  if (r != CUDA_SUCCESS) return r;
  Pool* pool = nullptr;
  {
    Lock lock(g_memory_mutex);
    pool = Find(handle);
  }
  if (pool != nullptr) ReleaseNow({-1, pool, false, keep});
  return r;
}

// The driver's answer is about what it has served itself.
CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  CUresult r = real::cuMemPoolGetAttribute(handle, attribute, value);
  if (r != CUDA_SUCCESS) return r;
  Lock lock(g_memory_mutex);
  const Pool* pool = Find(handle);
  if (pool == nullptr) return r;
  auto* wide = static_cast<cuuint64_t*>(value);
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) *wide += pool->reserved;
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) *wide += pool->reserved_high;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT) *wide += pool->used;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) *wide += pool->used_high;
  return r;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  CUresult r = real::cuMemPoolSetAttribute(handle, attribute, value);
  if (r != CUDA_SUCCESS) return r;
  Lock lock(g_memory_mutex);
  Pool* pool = PoolOf(handle);
  if (pool == nullptr) return r;
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->threshold = *static_cast<cuuint64_t*>(value);
    LookAt(pool);
  }
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool->reserved_high = pool->reserved;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->used_high = pool->used;
  return r;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  CUresult r = real::cuMemPoolSetAccess(handle, map, count);
  if (r != CUDA_SUCCESS) return r;
  Lock lock(g_memory_mutex);
  Pool* pool = PoolOf(handle);
  if (pool == nullptr || !pool->carried) return r;
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = map[i].location;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 ||
        location.id >= int(wire::kMaxDevices)) {
      pool->carried = false;  // what comes from here on is the driver's
      continue;
    }
    if (location.id != pool->device) pool->access[location.id] = uint8_t(map[i].flags);
  }
  for (Region* region : g_regions) {
    if (region->pool != pool || count == 0) continue;
    // All that was named, also what is taken away.
    CUresult given = real::cuMemSetAccess(region->address, region->bytes, map, count);
    if (given != CUDA_SUCCESS) return given;
  }
  return r;
}

CUresult cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  CUresult r = real::cuMemPoolExportToShareableHandle(handle, pool, type, flags);
  if (r == CUDA_SUCCESS) NoteBlocker(wire::kBlockerSharedVmm, "cuMemPoolExportToShareableHandle");
  return r;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  CUresult r = real::cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
  if (r == CUDA_SUCCESS) NoteBlocker(wire::kBlockerSharedVmm, "cuMemPoolImportFromShareableHandle");
  return r;
}

}  // namespace hook

#define STASIS_EXPORT extern "C" __attribute__((visibility("default")))

// Waits, which pass no gate. Afterwards a pool may have too much.
#define STASIS_WAIT(symbol, parameters, arguments) \
  STASIS_EXPORT CUresult symbol parameters {       \
    CUresult r = real::symbol arguments;           \
    AfterWait(r);                                  \
    return r;                                      \
  }
STASIS_WAIT(cuStreamSynchronize, (CUstream stream), (stream))
STASIS_WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
STASIS_WAIT(cuEventSynchronize, (CUevent event), (event))
STASIS_WAIT(cuCtxSynchronize, (), ())
STASIS_WAIT(cuCtxSynchronize_v2, (CUcontext context), (context))

}  // namespace stasis::agent
