#include "agent/cuda/memory.h"

#include <stdlib.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/driver_memory.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/pools.h"

namespace stasis::agent {

Mutex g_memory_mutex;
Vector<Region*> g_regions;

namespace {

Vector<CUdeviceptr> g_deferred;
std::atomic<bool> g_has_deferred{false};
std::atomic<uint64_t> g_next_id{uint64_t(1) << 40};  // far above the driver's own

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// The driver's own promises: 2 MiB for large pieces, 512 bytes for others.
uint64_t Alignment(uint64_t bytes) { return bytes >= kGranularity ? kGranularity : 512; }

size_t IndexFrom(uint64_t address) {
  return g_regions.LowerBound([&](const Region* r) { return r->address + r->bytes <= address; });
}

}  // namespace

void GiveBack(Region* region) {
  if (region->mapped) {
    real::cuMemUnmap(region->address, region->bytes);
    real::cuMemRelease(region->handle);
  }
  real::cuMemAddressFree(region->address, region->bytes);
  region->kept.Close();
  region->blocks.Free();
  if (region->import != nullptr) FreeImport(region->import);
  free(region);
}

void DropRegion(Region* region) {
  g_regions.Erase(IndexFrom(region->address));
  if (region->import == nullptr) DeviceAt(region->device)->region_bytes -= region->bytes;
  GiveBack(region);
}

CUresult MapRegion(Region* region) {
  CUresult r = real::cuMemMap(region->address, region->bytes, 0, region->handle, 0);
  if (r != CUDA_SUCCESS) return r;
  r = GiveRegionAccess(region);
  if (r != CUDA_SUCCESS) real::cuMemUnmap(region->address, region->bytes);
  return r;
}

CUresult GiveRegionAccess(const Region* region) {
  if (region->import != nullptr) return GiveImportAccess(region);
  if (region->pool == nullptr) return GiveAccess(region->address, region->bytes, region->device);
  CUmemAccessDesc access[wire::kMaxDevices];
  size_t count = 0;
  access[count++] = {{CU_MEM_LOCATION_TYPE_DEVICE, region->device},
                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (int peer = 0; peer < int(wire::kMaxDevices); ++peer) {
    if (peer == region->device || region->pool->access[peer] == 0) continue;
    access[count++] = {{CU_MEM_LOCATION_TYPE_DEVICE, peer},
                       CUmemAccess_flags(region->pool->access[peer])};
  }
  return real::cuMemSetAccess(region->address, region->bytes, access, count);
}

namespace {

// Finds the addresses for a region whose handle is there, maps it and enters it in the table. On an
// error the handle and the region are the caller's as before.
CUresult PlaceRegion(Region* region) {
  CUdeviceptr address = 0;
  CUresult r = real::cuMemAddressReserve(&address, region->bytes, kGranularity, 0, 0);
  if (r != CUDA_SUCCESS) return r;
  region->address = address;
  r = MapRegion(region);
  if (r == CUDA_SUCCESS) {
    region->mapped = true;
    if (g_regions.Insert(IndexFrom(address), region)) return CUDA_SUCCESS;
    real::cuMemUnmap(address, region->bytes);
    r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  real::cuMemAddressFree(address, region->bytes);
  return r;
}

Region* NewRegion(uint64_t bytes, CUdevice device, CUcontext context) {
  auto* region = static_cast<Region*>(calloc(1, sizeof(Region)));
  if (region == nullptr) return nullptr;
  region->id = NextBufferId();
  region->bytes = bytes;
  region->device = device;
  region->context = context;
  region->kept = KeptFd{};
  return region;
}

}  // namespace

CUresult MakeRegion(uint64_t bytes, CUdevice device, CUcontext context, Pool* pool, bool slab,
                    Region** out) {
  Region* region = NewRegion(bytes, device, context);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  region->pool = pool;
  region->slab = slab;
  region->fits = bytes;
  CUmemAllocationProp properties = ShareableProperties(device);
  CUresult r = real::cuMemCreate(&region->handle, bytes, &properties, 0);
  if (r == CUDA_SUCCESS) {
    r = PlaceRegion(region);
    if (r == CUDA_SUCCESS) {
      DeviceAt(device)->region_bytes += bytes;
      *out = region;
      return CUDA_SUCCESS;
    }
    real::cuMemRelease(region->handle);
  }
  free(region);
  return r;
}

CUresult MakeImport(uint64_t bytes, CUdevice device, CUcontext context, Import* import, int fd,
                    Region** out) {
  Region* region = NewRegion(bytes, device, context);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  region->import = import;
  CUresult r =
      real::cuMemImportFromShareableHandle(&region->handle, reinterpret_cast<void*>(intptr_t(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (r == CUDA_SUCCESS) {
    r = PlaceRegion(region);
    if (r == CUDA_SUCCESS) {
      *out = region;
      return CUDA_SUCCESS;
    }
    real::cuMemRelease(region->handle);
  }
  free(region);
  return r;
}

bool Carve(Region* region, uint64_t bytes, CUdeviceptr* out) {
  if (region->fits < bytes) return false;
  uint64_t alignment = Alignment(bytes);
  uint64_t at = 0;
  for (size_t i = 0; i <= region->blocks.size(); ++i) {
    uint64_t end = i < region->blocks.size() ? region->blocks[i].offset : region->bytes;
    at = RoundUp(at, alignment);
    if (at + bytes <= end) {
      if (!region->blocks.Insert(i, {at, bytes, NextBufferId(), false})) return false;
      region->used += bytes;
      *out = region->address + at;
      return true;
    }
    if (i < region->blocks.size()) at = region->blocks[i].offset + region->blocks[i].bytes;
  }
  region->fits = bytes - 1;
  return false;
}

namespace {

CUresult AllocateHere(uint64_t bytes, CUdevice device, CUcontext context, CUdeviceptr* out) {
  Region* region = nullptr;
  if (bytes < kLarge) {
    for (Region* slab : g_regions) {
      if (slab->slab && slab->device == device && slab->context == context &&
          slab->pool == nullptr && Carve(slab, bytes, out)) {
        return CUDA_SUCCESS;
      }
    }
    uint64_t size = DeviceAt(device)->region_bytes < kManyBytes ? kSmallSlab : kSlab;
    if (MakeRegion(size, device, context, nullptr, true, &region) == CUDA_SUCCESS &&
        Carve(region, bytes, out)) {
      return CUDA_SUCCESS;
    }
    // No room for a slab. There may be for the request.
  }
  CUresult r = MakeRegion(RoundUp(bytes, kGranularity), device, context, nullptr, false, &region);
  if (r != CUDA_SUCCESS) return r;
  return Carve(region, bytes, out) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Removes one allocation; its region goes back to the GPU with the last.
void Remove(Found found) {
  Region* region = found.region;
  region->used -= found.block->bytes;
  region->fits = region->bytes;
  region->blocks.Erase(size_t(found.block - region->blocks.begin()));
  if (region->blocks.size() == 0) DropRegion(region);
}

CUresult Plain(CUdeviceptr* ptr, size_t bytes, DriverKind kind, CUdevice device) {
  CUresult r = real::cuMemAlloc_v2(ptr, bytes);
  if (r == CUDA_SUCCESS) CountDriverMemory(kind, *ptr, bytes, device);
  return r;
}

}  // namespace

void ForgetPlain(CUdeviceptr ptr) {
  DriverPiece piece = UncountDriverMemory(ptr);
  if (piece.kind != DriverKind::kTiny) return;
  Lock lock(g_memory_mutex);
  if (Device* d = DeviceAt(piece.device)) d->tiny_bytes -= piece.bytes;
}

uint64_t NextBufferId() { return g_next_id.fetch_add(1, std::memory_order_relaxed); }

Found FindAllocation(CUdeviceptr address) {
  size_t i = IndexFrom(address);
  if (i == g_regions.size() || g_regions[i]->address > address) return {};
  Region* region = g_regions[i];
  uint64_t offset = address - region->address;
  size_t b =
      region->blocks.LowerBound([&](const Block& x) { return x.offset + x.bytes <= offset; });
  if (b == region->blocks.size() || region->blocks[b].offset > offset || region->blocks[b].freed) {
    return {};
  }
  return {region, &region->blocks[b]};
}

void FreeMemoryOf(CUcontext context) {
  Lock lock(g_memory_mutex);
  for (size_t i = g_regions.size(); i-- > 0;) {
    if (g_regions[i]->context == context) DropRegion(g_regions[i]);
  }
}

void GrantPeer(CUdevice device, CUdevice peer) {
  Lock lock(g_memory_mutex);
  Device* d = DeviceAt(device);
  if (d == nullptr || peer < 0 || peer >= int(wire::kMaxDevices)) return;
  d->peers |= uint64_t(1) << peer;
  for (Region* region : g_regions) {
    // A pool says for itself who may reach it.
    if (region->device == device && region->pool == nullptr) GiveRegionAccess(region);
  }
}

void FreeDeferred() {
  if (!g_has_deferred.load(std::memory_order_relaxed)) return;
  Vector<CUdeviceptr> now;
  {
    Lock lock(g_memory_mutex);
    now = g_deferred;
    g_deferred = {};
    g_has_deferred.store(false, std::memory_order_relaxed);
  }
  for (CUdeviceptr ptr : now) hook::cuMemFree_v2(ptr);
  now.Free();
}

void ResetMemory() {
  g_memory_mutex.ResetAfterFork();
  g_regions.AbandonAfterFork();
  g_deferred.AbandonAfterFork();
  g_has_deferred.store(false);
  ResetPools();
  ResetDevices();
}

namespace hook {

CUresult cuMemAlloc_v2(CUdeviceptr* ptr, size_t bytes) {
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (ptr == nullptr || bytes == 0 || real::cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
      context == nullptr || real::cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return real::cuMemAlloc_v2(ptr, bytes);
  }
  if (CUresult r = AskWhetherCaptureAllows(); r != CUDA_SUCCESS) return r;
  NoteContext(context, device);
  EnsureControl();
  CUresult result;
  do {
    Lock lock(g_memory_mutex);
    Device* d = DeviceAt(device);
    if (d == nullptr || !d->fast) {
      result = CUDA_ERROR_NOT_SUPPORTED;
    } else if (bytes < kTiny && d->tiny_bytes + bytes <= kTinyBudget) {
      d->tiny_bytes += bytes;
      result = CUDA_ERROR_NOT_PERMITTED;
    } else {
      result = AllocateHere(bytes, device, context, ptr);
    }
  } while (result == CUDA_ERROR_OUT_OF_MEMORY && FindMemoryInPools(device));
  if (result == CUDA_SUCCESS) return result;
  if (result == CUDA_ERROR_NOT_PERMITTED) {
    CUresult r = Plain(ptr, bytes, DriverKind::kTiny, device);
    if (r != CUDA_SUCCESS) {
      Lock lock(g_memory_mutex);
      DeviceAt(device)->tiny_bytes -= bytes;
    }
    return r;
  }
  // The plain driver may still have a piece, and says what a program expects to hear when not.
  return Plain(ptr, bytes, DriverKind::kPlain, device);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height,
                            unsigned element_size) {
  // The driver alone knows the pitch: one row of it tells.
  CUdeviceptr row = 0;
  size_t row_pitch = 0;
  if (ptr == nullptr || pitch == nullptr || height < 2 || width > SIZE_MAX / 2 / height ||
      width * height < kTiny || CapturesOpen() ||
      real::cuMemAllocPitch_v2(&row, &row_pitch, width, 1, element_size) != CUDA_SUCCESS) {
    CUresult r = real::cuMemAllocPitch_v2(ptr, pitch, width, height, element_size);
    if (r == CUDA_SUCCESS) CountDriverMemory(DriverKind::kPlain, *ptr, *pitch * height);
    return r;
  }
  real::cuMemFree_v2(row);
  CUresult r = cuMemAlloc_v2(ptr, row_pitch * height);
  if (r == CUDA_SUCCESS) *pitch = row_pitch;
  return r;
}

CUresult cuMemFree_v2(CUdeviceptr ptr) {
  bool ours = false;
  CUcontext owner = nullptr;
  {
    Lock lock(g_memory_mutex);
    Found found = FindAllocation(ptr);
    if (found.block != nullptr && found.region->address + found.block->offset == ptr) {
      if (found.region->import != nullptr) return CUDA_ERROR_INVALID_VALUE;
      ours = true;
      owner = found.region->context;
    }
  }
  CUcontext current = nullptr;
  if (!ours || real::cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr) {
    CUresult r = real::cuMemFree_v2(ptr);
    if (r == CUDA_SUCCESS) ForgetPlain(ptr);
    return r;
  }
  if (CapturesOpen()) {
    if (CUresult r = AskWhetherCaptureAllows(); r != CUDA_SUCCESS) return r;
    // Waiting for the GPU would spoil the capture, so this waits for its end.
    Lock lock(g_memory_mutex);
    g_has_deferred.store(true, std::memory_order_relaxed);
    return g_deferred.Push(ptr) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  // As the plain free does: work that was submitted may still use it. (Of a pool's memory the
  // driver demands that nothing does.)
  if (owner == nullptr) owner = current;
  if (CUresult r = SynchronizeContext(owner); r != CUDA_SUCCESS) return r;
  Lock lock(g_memory_mutex);
  Found found = FindAllocation(ptr);
  if (found.block == nullptr || found.region->address + found.block->offset != ptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (found.region->pool != nullptr) {
    FreePoolBlock(found);
  } else {
    Remove(found);
  }
  return CUDA_SUCCESS;
}

// What is free within slabs is free to the program.
CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  CUresult r = real::cuMemGetInfo_v2(free_bytes, total);
  CUdevice device = -1;
  if (r != CUDA_SUCCESS || free_bytes == nullptr || real::cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return r;
  }
  Lock lock(g_memory_mutex);
  for (const Region* region : g_regions) {
    if (region->pool == nullptr && region->slab && region->device == device)
      *free_bytes += region->bytes - region->used;
  }
  return r;
}

// Memory that a network card or another driver was given.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr ptr, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  CUresult r = real::cuMemGetHandleForAddressRange(handle, ptr, size, type, flags);
  if (r == CUDA_SUCCESS) NoteBlocker(wire::kBlockerSharedVmm, "cuMemGetHandleForAddressRange");
  return r;
}

}  // namespace hook
}  // namespace stasis::agent
