// cuMemAlloc and related functions, stream-ordered allocation, and queries about pointers.

#include <string.h>

#include "api.h"
#include "capture.h"
#include "context.h"
#include "driver.h"
#include "pool.h"

namespace softgpu {

using Lock = std::lock_guard<std::mutex>;

namespace {

// Takes unused memory of the same size from the pool, or allocates new memory.
CUresult AllocateIn(Pool* pool, size_t bytes, CUdeviceptr* out) {
  const size_t whole = RoundUp(bytes, kPage);
  if (whole < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  Memory* memory = nullptr;
  for (size_t i = 0; i < pool->unused.size() && memory == nullptr; ++i) {
    if (pool->unused[i]->bytes != whole) continue;
    memory = pool->unused[i];
    pool->unused.erase(pool->unused.begin() + long(i));
  }
  if (memory == nullptr) {
    if (pool->max_bytes != 0 && pool->reserved + whole > pool->max_bytes) TrimPool(pool, 0);
    if (pool->max_bytes != 0 && pool->reserved + whole > pool->max_bytes) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult r = driver().memory.Create(MemoryKind::kPlain, pool->ordinal, whole, false, &memory);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
      for (auto& [other, owned] : driver().pools) TrimPool(other, 0);
      r = driver().memory.Create(MemoryKind::kPlain, pool->ordinal, whole, false, &memory);
    }
    if (r != CUDA_SUCCESS) return r;
    pool->reserved += whole;
    pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  }
  pool->used += bytes;
  pool->used_high = std::max(pool->used_high, pool->used);
  driver().memory.AddRange({RangeKind::kPool, memory->home, bytes, memory, nullptr, pool});
  *out = memory->home;
  return CUDA_SUCCESS;
}

CUresult Allocate(Context* context, RangeKind kind, size_t bytes, CUdeviceptr* out,
                  Pool* pool = nullptr) {
  if (bytes == 0 || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (pool != nullptr) return AllocateIn(pool, bytes, out);
  Memory* memory = nullptr;
  // The broker keeps the file, because cuIpcGetMemHandle may be called for this memory.
  CUresult r = driver().memory.Create(MemoryKind::kPlain, context->ordinal, bytes,
                                      kind == RangeKind::kDevice, &memory);
  if (r != CUDA_SUCCESS) return r;
  memory->managed = kind == RangeKind::kManaged;
  Range range{kind, memory->home, bytes, memory, context};
  driver().memory.AddRange(range);
  *out = memory->home;
  return CUDA_SUCCESS;
}

void Free(const Range& range) {
  Memory* memory = range.memory;
  driver().memory.RemoveRange(range.address);
  if (range.pool == nullptr) return driver().memory.Destroy(memory);
  if (!range.freed) range.pool->used -= range.bytes;
  range.pool->unused.push_back(memory);
}

bool Freeable(const Range* range) {
  return range != nullptr && !range->freed &&
         (range->kind == RangeKind::kDevice || range->kind == RangeKind::kManaged ||
          range->kind == RangeKind::kPool);
}

CUresult Current(Context** context) {
  if (CUresult r = CurrentContext(context); r != CUDA_SUCCESS) return r;
  return RefuseUnsafe();
}

}  // namespace

void TrimPool(Pool* pool, uint64_t keep) {
  while (!pool->unused.empty() && pool->reserved > keep) {
    pool->reserved -= pool->unused.back()->bytes;
    driver().memory.Destroy(pool->unused.back());
    pool->unused.pop_back();
  }
}

void TrimPools() {
  Lock lock(driver().mutex);
  for (auto& [pool, owned] : driver().pools) TrimPool(pool, pool->release_threshold);
}

void EndPools(int ordinal) {
  MemoryTable& table = driver().memory;
  for (auto it = table.ranges().begin(); it != table.ranges().end();) {
    Range range = (it++)->second;
    if (range.kind == RangeKind::kPool && range.memory->ordinal == ordinal) Free(range);
  }
  for (auto& [pool, owned] : driver().pools) {
    if (pool->ordinal == ordinal) TrimPool(pool, 0);
  }
}

void FreeContextMemory(Context* context) {
  MemoryTable& table = driver().memory;
  for (auto it = table.ranges().begin(); it != table.ranges().end();) {
    Range range = (it++)->second;
    // Mappings, handles and pinned pages belong to the process.
    if (range.context != context || range.kind == RangeKind::kMapped) continue;
    if (range.memory != nullptr) {
      Free(range);
    } else {
      FreeHostRange(range);
    }
  }
}

namespace api {

CUresult cuMemAlloc_v2(CUdeviceptr* ptr, size_t bytes) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (CUresult r = Current(&context); r != CUDA_SUCCESS) return r;
  return Allocate(context, RangeKind::kDevice, bytes, ptr);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height,
                            unsigned int element_size) {
  if (pitch == nullptr || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element_size != 4 && element_size != 8 && element_size != 16) return CUDA_ERROR_INVALID_VALUE;
  *pitch = RoundUp(width, 512);
  return cuMemAlloc_v2(ptr, *pitch * height);
}

CUresult cuMemAllocManaged(CUdeviceptr* ptr, size_t bytes, unsigned int flags) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = Current(&context); r != CUDA_SUCCESS) return r;
  return Allocate(context, RangeKind::kManaged, bytes, ptr);
}

CUresult cuMemFree_v2(CUdeviceptr ptr) {
  if (ptr == 0) return CUDA_SUCCESS;
  Context* owner = nullptr;
  {
    Lock lock(driver().mutex);
    Context* context = nullptr;
    if (CUresult r = Current(&context); r != CUDA_SUCCESS) return r;
    Range* range = driver().memory.At(ptr);
    if (!Freeable(range)) return CUDA_ERROR_INVALID_VALUE;
    owner = range->context;
  }
  WaitForContext(owner);  // unfinished work may use it
  Lock lock(driver().mutex);
  Range* range = driver().memory.At(ptr);
  if (!Freeable(range)) return CUDA_ERROR_INVALID_VALUE;
  Free(Range(*range));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr ptr) {
  Lock lock(driver().mutex);
  Range* range = driver().memory.Find(ptr);
  if (range == nullptr || range->kind == RangeKind::kHost ||
      range->kind == RangeKind::kRegistered) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) *base = range->address;
  if (size != nullptr) *size = range->bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr ptr, size_t count, CUmem_advise, CUdevice) {
  Lock lock(driver().mutex);
  Range* range = driver().memory.Find(ptr);
  if (range == nullptr || range->kind != RangeKind::kManaged || count == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemAdvise_v2(CUdeviceptr ptr, size_t count, CUmem_advise advice,
                        CUmemLocation location) {
  return cuMemAdvise(ptr, count, advice, location.id);
}

CUresult cuMemPrefetchAsync(CUdeviceptr ptr, size_t count, CUdevice device, CUstream stream) {
  if (CUresult r = cuMemAdvise(ptr, count, {}, device); r != CUDA_SUCCESS) return r;
  return Submit(stream, [] {});
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr ptr, size_t count, CUmemLocation location, unsigned int,
                               CUstream stream) {
  return cuMemPrefetchAsync(ptr, count, location.id, stream);
}

// Pools.

namespace {

Pool* FindPool(CUmemoryPool handle) {
  auto it = driver().pools.find(reinterpret_cast<Pool*>(handle));
  return it == driver().pools.end() ? nullptr : it->first;
}

CUmemoryPool Handle(Pool* pool) { return reinterpret_cast<CUmemoryPool>(pool); }

Pool* AddPool(int ordinal) {
  auto pool = std::make_unique<Pool>();
  Pool* raw = pool.get();
  raw->ordinal = ordinal;
  driver().pools.emplace(raw, std::move(pool));
  return raw;
}

Pool* DefaultPool(int ordinal) {
  Device& device = driver().devices[ordinal];
  if (device.default_pool == nullptr) {
    device.default_pool = AddPool(ordinal);
    device.default_pool->is_default = true;
  }
  return device.default_pool;
}

// If any memory waits to be freed in stream order, returns tickets for all submitted work.
std::vector<Ticket> PendingFrees() {
  bool any = false;
  for (auto& [address, range] : driver().memory.ranges()) any |= range.freed;
  std::vector<Ticket> all;
  if (!any) return all;
  for (auto& [context, owned] : driver().contexts) {
    std::vector<Ticket> work = AllWork(context);
    all.insert(all.end(), work.begin(), work.end());
  }
  return all;
}

CUresult AllocateFrom(Pool* chosen, CUdeviceptr* ptr, size_t bytes, CUstream stream) {
  CUresult r = CUDA_SUCCESS;
  std::vector<Ticket> frees;
  {
    Lock lock(driver().mutex);
    Stream* resolved = nullptr;
    if (CUresult r = ResolveStream(stream, &resolved); r != CUDA_SUCCESS) return r;
    // Memory of graphs is not implemented.
    if (resolved->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    Context* context = resolved->context;
    Pool* pool = chosen;
    if (pool == nullptr) pool = driver().devices[context->ordinal].pool;
    if (pool == nullptr) pool = DefaultPool(context->ordinal);
    r = Allocate(context, RangeKind::kPool, bytes, ptr, pool);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) frees = PendingFrees();
  }
  if (r == CUDA_ERROR_OUT_OF_MEMORY && !frees.empty()) {
    for (const Ticket& ticket : frees) ticket.Wait();
    return AllocateFrom(chosen, ptr, bytes, stream);
  }
  return r != CUDA_SUCCESS ? r : Submit(stream, [] {});
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* ptr, size_t bytes, CUstream stream) {
  return AllocateFrom(nullptr, ptr, bytes, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  {
    Lock lock(driver().mutex);
    if (FindPool(pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  return AllocateFrom(reinterpret_cast<Pool*>(pool), ptr, bytes, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) {
  if (ptr == 0) return CUDA_SUCCESS;
  {
    Lock lock(driver().mutex);
    Range* range = driver().memory.At(ptr);
    if (!Freeable(range)) return CUDA_ERROR_INVALID_VALUE;
    Stream* resolved = nullptr;
    if (CUresult r = ResolveStream(stream, &resolved); r != CUDA_SUCCESS) return r;
    // A graph can free only its own memory.
    if (resolved->capture != nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (range->pool != nullptr) range->pool->used -= range->bytes;
    range->freed = true;
  }
  return Submit(stream, [ptr] {
    Lock lock(driver().mutex);
    Range* range = driver().memory.At(ptr);
    if (range != nullptr && range->freed) Free(Range(*range));
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  Lock lock(driver().mutex);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= driver().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *pool = Handle(DefaultPool(device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  Lock lock(driver().mutex);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= driver().device_count) return CUDA_ERROR_INVALID_DEVICE;
  Pool* set = driver().devices[device].pool;
  *pool = Handle(set != nullptr ? set : DefaultPool(device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  Lock lock(driver().mutex);
  Pool* pool = FindPool(handle);
  if (device < 0 || device >= driver().device_count) return CUDA_ERROR_INVALID_DEVICE;
  if (pool == nullptr || pool->ordinal != device) return CUDA_ERROR_INVALID_VALUE;
  driver().devices[device].pool = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  Lock lock(driver().mutex);
  if (pool == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || props->usage != 0 ||
      props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (props->location.id < 0 || props->location.id >= driver().device_count) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Pool* made = AddPool(props->location.id);
  made->max_bytes = props->maxSize;
  *pool = Handle(made);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  Lock lock(driver().mutex);
  Pool* pool = FindPool(handle);
  if (pool == nullptr || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  for (Device& device : driver().devices) {
    if (device.pool == pool) device.pool = nullptr;
  }
  for (auto& [address, range] : driver().memory.ranges()) {
    if (range.pool == pool) range.pool = nullptr;
  }
  TrimPool(pool, 0);
  driver().pools.erase(pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  Lock lock(driver().mutex);
  Pool* pool = FindPool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  TrimPool(pool, keep);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Lock lock(driver().mutex);
  Pool* pool = FindPool(handle);
  if (pool == nullptr || value == nullptr || attribute < 1 || attribute > 8) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    pool->reuse[attribute] = *static_cast<int*>(value);
    return CUDA_SUCCESS;
  }
  uint64_t wide = *static_cast<cuuint64_t*>(value);
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    pool->release_threshold = wide;
  } else if (wide != 0) {
    return CUDA_ERROR_INVALID_VALUE;  // high-water marks can only be reset
  } else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    pool->used_high = pool->used;
  } else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
    pool->reserved_high = pool->reserved;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Lock lock(driver().mutex);
  Pool* pool = FindPool(handle);
  if (pool == nullptr || value == nullptr || attribute < 1 || attribute > 8) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto* wide = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *wide = pool->release_threshold;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *wide = pool->reserved;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *wide = pool->used;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *wide = pool->reserved_high;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *wide = pool->used_high;
      break;
    default:
      *static_cast<int*>(value) = pool->reuse[attribute];
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  Lock lock(driver().mutex);
  Pool* pool = FindPool(handle);
  if (pool == nullptr || (map == nullptr && count != 0)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = map[i].location;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 ||
        location.id >= driver().device_count ||
        (location.id == pool->ordinal && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  // The flags are only stored, because every device can access the memory anyway.
  for (size_t i = 0; i < count; ++i) pool->access[map[i].location.id] = map[i].flags;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                            CUmemLocation* location) {
  Lock lock(driver().mutex);
  Pool* pool = FindPool(handle);
  if (flags == nullptr || pool == nullptr || location == nullptr ||
      location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 ||
      location->id >= driver().device_count) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = location->id == pool->ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                         : pool->access[location->id];
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportToShareableHandle(void*, CUmemoryPool, CUmemAllocationHandleType,
                                          unsigned long long) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool*, void*, CUmemAllocationHandleType,
                                            unsigned long long) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData*, CUdeviceptr) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemPoolImportPointer(CUdeviceptr*, CUmemoryPool, CUmemPoolPtrExportData*) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace api
}  // namespace softgpu
