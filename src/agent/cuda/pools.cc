#include "agent/cuda/pools.h"

#include <stdlib.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/stream_order.h"
#include "agent/gate.h"
#include "agent/thread.h"

namespace stasis::agent {

std::atomic<bool> g_pools_look{false};

namespace {

Vector<Pool*> g_pools;

std::atomic<uint32_t> g_release_wanted{0};  // counts
std::atomic<uint32_t> g_releasing{0};       // how many are giving regions back right now
std::atomic<uint32_t> g_release_thread{0};  // 0 none, 1 being started, 2 there

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

bool HasRegions(const Pool* pool) {
  for (const Region* region : g_regions) {
    if (region->pool == pool) return true;
  }
  return false;
}

// ---- allocating

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

CUresult FindRoom(Pool* pool, uint64_t bytes, uint64_t stream, CUdeviceptr* out) {
  const bool small = bytes < kLarge;
  ReapFreed();
  if ((stream != 0 && TakeFreed(pool, bytes, stream, small, out)) ||
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

struct Release {
  CUdevice device;  // -1: all
  Pool* pool;       // null: all
  bool all;         // whatever the threshold says
  uint64_t keep;    // of `pool`; else the threshold's
};

// Takes the regions that are to go out of the tables. They are still the driver's.
void Collect(const Release& what, Vector<Region*>* gone) {
  g_pools_look.store(false, std::memory_order_relaxed);
  ReapFreed();
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
  LookAtFreed();
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

}  // namespace

void CountUse(Pool* pool, uint64_t bytes) {
  pool->used += bytes;
  if (pool->used > pool->used_high) pool->used_high = pool->used;
}

void LookAt(const Pool* pool) {
  if (pool->reserved > pool->threshold) g_pools_look.store(true, std::memory_order_relaxed);
}

void EraseBlock(Region* region, Block* block) {
  region->blocks.Erase(size_t(block - region->blocks.begin()));
  region->fits = region->bytes;
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

CUresult AllocateIn(Pool* pool, uint64_t bytes, uint64_t stream, CUdeviceptr* out) {
  CUresult r = FindRoom(pool, bytes, stream, out);
  if (r == CUDA_SUCCESS) CountUse(pool, bytes);
  return r;
}

// The thread that waited goes on at once.
void ReleaseSoon() {
  uint32_t none = 0;
  if (g_release_thread.compare_exchange_strong(none, 1)) {
    g_release_thread.store(StartThread("stasis-pools", ReleaseThread, nullptr) ? 2 : 0);
  }
  g_release_wanted.fetch_add(1);
  FutexWake(&g_release_wanted);
}

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
    event = FirstFreeOn(device);
  }
  return event != nullptr && real::cuEventSynchronize(event) == CUDA_SUCCESS;
}

void FreePoolMemoryOf(CUdevice device) {
  Vector<Region*> gone;
  {
    Lock lock(g_memory_mutex);
    FinishFreesOn(device);
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
  ResetStreamOrder();
  g_pools_look.store(false);
  g_releasing.store(0);
  g_release_thread.store(0);
}

namespace hook {

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

}  // namespace stasis::agent
