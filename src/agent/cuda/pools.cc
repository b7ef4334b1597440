#include "agent/cuda/pools.h"

#include <stdlib.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/stream_order.h"
#include "agent/cuda/visible.h"
#include "agent/gate.h"
#include "agent/thread.h"

namespace stasis::agent {

std::atomic<bool> g_pools_look{false};

namespace {

Vector<Pool*> g_pools;

std::atomic<uint32_t> g_release_wanted{0};  // counter
std::atomic<uint32_t> g_releasing{0};       // threads that free regions at this moment
std::atomic<uint32_t> g_release_thread{0};  // 0 not started, 1 starting, 2 started

// From here to TakeRoom the caller holds the mutex unless the function's comment says otherwise.

Pool* Find(CUmemoryPool handle) {
  for (Pool* pool : g_pools) {
    if (handle != nullptr && pool->handle == handle) return pool;
  }
  return nullptr;
}

// Adds a pool to the table. The caller must not hold the mutex.
void EnterPool(CUmemoryPool handle, CUdevice device, bool carried) {
  const Device* d = DeviceAt(device);
  uint64_t threshold = 0;
  real::cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  Lock lock(g_memory_mutex);
  if (Find(handle) != nullptr) return;  // entered by another thread
  auto* pool = static_cast<Pool*>(calloc(1, sizeof(Pool)));
  if (pool == nullptr || !g_pools.Push(pool)) return free(pool);
  pool->handle = handle;
  pool->device = device;
  pool->carried = carried && d != nullptr && d->fast;
  pool->threshold = threshold;
}

bool HasRegions(const Pool* pool) {
  for (const Region* region : g_regions) {
    if (region->pool == pool) return true;
  }
  return false;
}

// Allocates from the smallest region with enough room, to keep large pieces for large requests.
bool TakeFree(Pool* pool, uint64_t bytes, bool slabs, CUdeviceptr* out) {
  Region* tried = nullptr;
  for (;;) {
    Region* best = nullptr;
    for (Region* region : g_regions) {
      if (region->pool != pool || region->slab != slabs || region->fits < bytes) continue;
      if (best == nullptr || region->bytes < best->bytes) best = region;
    }
    // If the region lacks room, Carve lowers `fits`, and the region is not tried again. A second
    // failure on one region means that there is no host memory.
    if (best == nullptr || best == tried) return false;
    if (Carve(best, bytes, out)) return true;
    tried = best->fits < bytes ? nullptr : best;
  }
}

// Allocates from an existing region that is not a slab, for a request of any size. The caller must
// not hold the mutex.
bool TakeLarge(Pool* pool, uint64_t bytes, CUdeviceptr* out) {
  Lock lock(g_memory_mutex);
  if (!TakeFree(pool, bytes, false, out)) return false;
  CountUse(pool, bytes);
  return true;
}

// Allocates from the existing regions only. The caller must not hold the mutex.
bool TakeRoom(Pool* pool, uint64_t bytes, uint64_t stream, CUdeviceptr* out) {
  const bool small = bytes < kLarge;
  Lock lock(g_memory_mutex);
  ReapFreed();
  if ((stream == 0 || !TakeFreed(pool, bytes, stream, small, out)) &&
      !TakeFree(pool, bytes, small, out)) {
    return false;
  }
  CountUse(pool, bytes);
  return true;
}

struct Release {
  CUdevice device;  // -1: all
  Pool* pool;       // null: all
  bool all;         // ignores the thresholds
  uint64_t keep;    // for `pool`, in place of its threshold
};

// Takes unused regions out of the tables. The destructor of `leaving` frees their memory.
void Collect(const Release& what, Leaving* leaving) {
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
        if (region->pool != pool || region->blocks.size() > 0) continue;
        pool->reserved -= region->bytes;
        DropRegion(region, leaving);
      }
    }
    if (pool->handle == nullptr && pool->uses == 0 && !HasRegions(pool)) {
      g_pools.Erase(p);
      free(pool);
    }
  }
  LookAtFreed();
}

// Frees unused regions, and returns whether there were any. The caller must not hold the mutex,
// because unmapping may wait for work of any stream.
bool ReleaseNow(const Release& what) {
  Relaxed relaxed;
  bool any = false;
  {
    Leaving leaving;
    Lock lock(g_memory_mutex);
    g_releasing.fetch_add(1);
    Collect(what, &leaving);
    any = !leaving.empty();
  }
  g_releasing.fetch_sub(1);
  FutexWake(&g_releasing);
  return any;
}

void* ReleaseThread(void*) {
  gate::MarkBackground();
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

void CountReserved(Pool* pool, uint64_t bytes) {
  pool->reserved += bytes;
  if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
}

void LearnPool(CUmemoryPool handle) {
  {
    Lock lock(g_memory_mutex);
    if (Find(handle) != nullptr) return;
  }
  int count = 0;
  if (real::cuDeviceGetCount(&count) != CUDA_SUCCESS) return;
  for (CUdevice device = 0; device < count; ++device) {
    CUmemoryPool known = nullptr;
    if (real::cuDeviceGetDefaultMemPool(&known, device) != CUDA_SUCCESS || known != handle) {
      continue;
    }
    return EnterPool(handle, device, true);
  }
}

PoolUse::PoolUse(CUmemoryPool handle) {
  Lock lock(g_memory_mutex);
  pool = Find(handle);
  if (pool != nullptr && !pool->carried) pool = nullptr;
  if (pool != nullptr) ++pool->uses;
}

PoolUse::~PoolUse() {
  if (pool == nullptr) return;
  Lock lock(g_memory_mutex);
  --pool->uses;
}

CUresult AllocateIn(Pool* pool, uint64_t bytes, uint64_t stream, CUdeviceptr* out) {
  if (TakeRoom(pool, bytes, stream, out)) return CUDA_SUCCESS;
  Lock growing(g_growth_mutex);
  // Another thread may have made room in the meantime.
  if (TakeRoom(pool, bytes, stream, out)) return CUDA_SUCCESS;
  CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes < kLarge) {
    uint64_t slab_bytes = 0;
    {
      Lock lock(g_memory_mutex);
      slab_bytes = SlabBytes(pool->device);
    }
    r = GrowBy(slab_bytes, pool->device, nullptr, pool, true, bytes, out);
    if (r == CUDA_ERROR_OUT_OF_MEMORY && TakeLarge(pool, bytes, out)) return CUDA_SUCCESS;
  }
  if (r == CUDA_ERROR_OUT_OF_MEMORY) {
    const uint64_t whole = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    r = GrowBy(whole, pool->device, nullptr, pool, false, bytes, out);
  }
  if (r != CUDA_SUCCESS) return r;
  Lock lock(g_memory_mutex);
  CountUse(pool, bytes);
  return CUDA_SUCCESS;
}

// Only wakes the thread that frees the memory, and starts it if necessary. Does not block the
// caller.
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
  Relaxed relaxed;
  return AwaitFreeOn(device);
}

void FreePoolMemoryOf(CUdevice device) {
  Leaving leaving;
  Lock lock(g_memory_mutex);
  if (ContextOn(device) != nullptr) return;
  FinishFreesOn(device);
  for (size_t i = g_regions.size(); i-- > 0;) {
    Region* region = g_regions[i];
    if (region->pool == nullptr || region->device != device) continue;
    region->pool->used -= region->used;
    region->used = 0;
    region->blocks.Clear();
  }
  Collect({device, nullptr, true, 0}, &leaving);
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
  if (props != nullptr && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      IsHidden(props->location.id)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  CUresult r = real::cuMemPoolCreate(pool, props);
  if (r != CUDA_SUCCESS) return r;
  EnsureControl();
  // The driver serves pools that other processes may open, that have a maximum size, or that are
  // not on a device.
  const bool carried = props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                       props->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                       props->handleTypes == CU_MEM_HANDLE_TYPE_NONE && props->maxSize == 0 &&
                       props->usage == 0;
  EnterPool(*pool, carried ? props->location.id : 0, carried);
  return r;
}

// The pool's allocations remain valid until they are freed.
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  // Clear the handle first: as soon as the driver has destroyed the pool, another thread may get a
  // new pool with the same handle.
  Pool* pool = nullptr;
  {
    Lock lock(g_memory_mutex);
    pool = Find(handle);
    if (pool != nullptr) {
      ++pool->uses;  // keeps the structure
      pool->handle = nullptr;
    }
  }
  CUresult r = real::cuMemPoolDestroy(handle);
  if (pool == nullptr) return r;
  {
    Lock lock(g_memory_mutex);
    --pool->uses;
    if (r == CUDA_SUCCESS) {
      pool->threshold = 0;
    } else {
      pool->handle = handle;
    }
  }
  if (r == CUDA_SUCCESS) ReleaseNow({-1, nullptr, false, 0});
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

// The driver counts only memory that it serves itself; so the memory of the agent's regions is
// added.
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
  LearnPool(handle);
  Lock lock(g_memory_mutex);
  Pool* pool = Find(handle);
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
  LearnPool(handle);
  Lock growing(g_growth_mutex);
  Lock lock(g_memory_mutex);
  Pool* pool = Find(handle);
  if (pool == nullptr || !pool->carried) return r;
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = map[i].location;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 ||
        location.id >= int(agent_protocol::kMaxDevices)) {
      pool->carried = false;  // the driver serves later allocations
      continue;
    }
    if (location.id != pool->device) pool->access[location.id] = uint8_t(map[i].flags);
  }
  for (Region* region : g_regions) {
    if (region->pool != pool || count == 0) continue;
    // Applies every entry, including those that revoke access.
    CUresult given = real::cuMemSetAccess(region->address, region->bytes, map, count);
    if (given != CUDA_SUCCESS) return given;
  }
  return r;
}

CUresult cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  CUresult r = real::cuMemPoolExportToShareableHandle(handle, pool, type, flags);
  if (r == CUDA_SUCCESS) {
    NoteBlocker(agent_protocol::kBlockerSharedVmm, "cuMemPoolExportToShareableHandle");
  }
  return r;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  CUresult r = real::cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
  if (r == CUDA_SUCCESS) {
    NoteBlocker(agent_protocol::kBlockerSharedVmm, "cuMemPoolImportFromShareableHandle");
  }
  return r;
}

}  // namespace hook

}  // namespace stasis::agent
