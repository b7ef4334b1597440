#include "agent/cuda/memory.h"

#include <stdlib.h>
#include <string.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/allocate.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/held_memory.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/pools.h"
#include "agent/cuda/program_vmm.h"
#include "agent/growth.h"

namespace stasis::agent {

Mutex g_growth_mutex;
Mutex g_memory_mutex;
Vector<Region*> g_regions;

namespace {

Vector<CUdeviceptr> g_deferred;
std::atomic<bool> g_has_deferred{false};
std::atomic<uint64_t> g_next_id{uint64_t(1) << 40};  // far above the driver's ids

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// The driver's own alignment: 2 MiB for large allocations, 512 bytes for others.
uint64_t Alignment(uint64_t bytes) { return bytes >= kGranularity ? kGranularity : 512; }

size_t IndexFrom(uint64_t address) {
  return g_regions.LowerBound([&](const Region* r) { return r->address + r->bytes <= address; });
}

// Frees a region and everything that the driver holds for it. The region must be in no table.
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

}  // namespace

void Leaving::Add(Region* region) {
  region->next = regions_;
  regions_ = region;
}

void Leaving::Add(ProgramHandle* handle) {
  handle->next = handles_;
  handles_ = handle;
}

Leaving::~Leaving() {
  const bool any = !empty();
  while (Region* region = regions_) {
    regions_ = region->next;
    GiveBack(region);
  }
  while (ProgramHandle* handle = handles_) {
    handles_ = handle->next;
    GiveBackHandle(handle);
  }
  if (any) room::NoteFree();
}

void DropRegion(Region* region, Leaving* leaving) {
  g_regions.Erase(IndexFrom(region->address));
  if (region->import == nullptr) {
    KnownDevice(region->device)->region_bytes -= region->bytes;
    growth::Remove(region->bytes);
  }
  leaving->Add(region);
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
  AccessFlags flags;
  memcpy(flags, region->pool->access, sizeof(flags));
  flags[region->device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return SetAccess(region->address, region->bytes, flags);
}

namespace {

// Reserves addresses for a region that has its handle, and maps it. After an error the caller still
// owns the handle and the region.
CUresult PlaceRegion(Region* region) {
  CUdeviceptr address = 0;
  CUresult r = real::cuMemAddressReserve(&address, region->bytes, kGranularity, 0, 0);
  if (r != CUDA_SUCCESS) return r;
  region->address = address;
  r = MapRegion(region);
  region->mapped = r == CUDA_SUCCESS;
  if (r != CUDA_SUCCESS) real::cuMemAddressFree(address, region->bytes);
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

// Completes a new region: maps it if its handle was created (`r` is the result of that call). Frees
// the region after an error.
CUresult Complete(Region* region, CUresult r, Region** out) {
  if (r == CUDA_SUCCESS) {
    r = PlaceRegion(region);
    if (r != CUDA_SUCCESS) real::cuMemRelease(region->handle);
  }
  if (r == CUDA_SUCCESS) {
    *out = region;
  } else {
    free(region);
  }
  return r;
}

// Creates a region, which is in no table yet.
CUresult MakeRegion(uint64_t bytes, CUdevice device, CUcontext context, Pool* pool, bool slab,
                    Region** out) {
  Region* region = NewRegion(bytes, device, context);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  region->pool = pool;
  region->slab = slab;
  region->fits = bytes;
  CUmemAllocationProp properties = ShareableProperties(device);
  return Complete(region, real::cuMemCreate(&region->handle, bytes, &properties, 0), out);
}

}  // namespace

bool EnterRegion(Region* region) {
  if (!g_regions.Insert(IndexFrom(region->address), region)) return false;
  if (region->import != nullptr) return true;
  KnownDevice(region->device)->region_bytes += region->bytes;
  growth::Add(region->bytes);
  if (region->pool != nullptr) CountReserved(region->pool, region->bytes);
  return true;
}

uint64_t SlabBytes(CUdevice device) {
  return KnownDevice(device)->region_bytes < kManyBytes ? kSmallSlab : kSlab;
}

CUresult GrowBy(uint64_t region_bytes, CUdevice device, CUcontext context, Pool* pool, bool slab,
                uint64_t bytes, CUdeviceptr* out) {
  Region* region = nullptr;
  CUresult r = MakeRegion(region_bytes, device, context, pool, slab, &region);
  if (r != CUDA_SUCCESS) return r;
  Leaving leaving;
  Lock lock(g_memory_mutex);
  // Carve a block first, because a region without a block would never be freed once it is in the
  // table.
  if (!Carve(region, bytes, out) || !EnterRegion(region)) {
    leaving.Add(region);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult MakeImport(uint64_t bytes, CUdevice device, CUcontext context, Import* import, int fd,
                    Region** out) {
  Region* region = NewRegion(bytes, device, context);
  if (region == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  region->import = import;
  const CUresult imported =
      real::cuMemImportFromShareableHandle(&region->handle, reinterpret_cast<void*>(intptr_t(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  return Complete(region, imported, out);
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

// Allocates from a slab with enough free space. The caller holds the mutex.
bool TakeFromSlab(uint64_t bytes, CUdevice device, CUcontext context, CUdeviceptr* out) {
  for (Region* slab : g_regions) {
    if (slab->slab && slab->device == device && slab->context == context && slab->pool == nullptr &&
        Carve(slab, bytes, out)) {
      return true;
    }
  }
  return false;
}

CUresult AllocateHere(uint64_t bytes, CUdevice device, CUcontext context, CUdeviceptr* out) {
  const bool small = bytes < kLarge;
  if (small) {
    Lock lock(g_memory_mutex);
    if (TakeFromSlab(bytes, device, context, out)) return CUDA_SUCCESS;
  }
  Lock growing(g_growth_mutex);
  if (small) {
    uint64_t slab_bytes = 0;
    {
      // Another thread may have made a slab meanwhile.
      Lock lock(g_memory_mutex);
      if (TakeFromSlab(bytes, device, context, out)) return CUDA_SUCCESS;
      slab_bytes = SlabBytes(device);
    }
    if (GrowBy(slab_bytes, device, context, nullptr, true, bytes, out) == CUDA_SUCCESS) {
      return CUDA_SUCCESS;
    }
    // There is no room for a slab, but there may be room for the request alone.
  }
  return GrowBy(RoundUp(bytes, kGranularity), device, context, nullptr, false, bytes, out);
}

// Returns true, and counts the tiny allocation, if it fits into the budget of the device for tiny
// allocations that stay with the driver.
bool CountTiny(Device* device, uint64_t bytes) {
  Lock lock(g_memory_mutex);
  if (bytes >= kTiny || device->tiny_bytes + bytes > kTinyBudget) return false;
  device->tiny_bytes += bytes;
  return true;
}

// Removes one allocation from its region, and the region too if it has no other allocation.
void Remove(Found found, Leaving* leaving) {
  Region* region = found.region;
  region->used -= found.block->bytes;
  region->fits = region->bytes;
  region->blocks.Erase(size_t(found.block - region->blocks.begin()));
  if (region->blocks.size() == 0) DropRegion(region, leaving);
}

CUresult Plain(CUdeviceptr* ptr, size_t bytes, DriverKind kind, CUdevice device) {
  CUresult r = real::cuMemAlloc_v2(ptr, bytes);
  if (r == CUDA_SUCCESS) CountDriverMemory(kind, *ptr, bytes, device);
  return r;
}

CUresult Allocate(CUdeviceptr* ptr, size_t bytes, CUdevice device, CUcontext context) {
  Device* d = DeviceAt(device);
  CUresult result;
  do {
    if (d == nullptr || !d->fast) {
      result = CUDA_ERROR_NOT_SUPPORTED;
    } else if (CountTiny(d, bytes)) {
      result = CUDA_ERROR_NOT_PERMITTED;
    } else {
      result = AllocateHere(bytes, device, context, ptr);
    }
  } while (result == CUDA_ERROR_OUT_OF_MEMORY && FindMemoryInPools(device));
  if (result == CUDA_SUCCESS) return result;
  if (result == CUDA_ERROR_NOT_PERMITTED) {
    CUresult r = Plain(ptr, bytes, DriverKind::kTiny, device);
    if (r != CUDA_SUCCESS) UncountTiny(device, bytes);
    return r;
  }
  // The driver may still find GPU memory. Otherwise it returns the error that the program expects.
  return Plain(ptr, bytes, DriverKind::kPlain, device);
}

}  // namespace

void UncountTiny(CUdevice device, uint64_t bytes) {
  Lock lock(g_memory_mutex);
  if (Device* d = KnownDevice(device)) d->tiny_bytes -= bytes;
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

void DropMemoryOf(CUcontext context, Leaving* leaving) {
  for (size_t i = g_regions.size(); i-- > 0;) {
    if (g_regions[i]->context == context) DropRegion(g_regions[i], leaving);
  }
}

void GrantPeer(CUdevice device, CUdevice peer) {
  Device* d = DeviceAt(device);
  Lock growing(g_growth_mutex);
  Lock lock(g_memory_mutex);
  if (d == nullptr || peer < 0 || peer >= int(agent_protocol::kMaxDevices)) return;
  d->peers |= uint64_t(1) << peer;
  for (Region* region : g_regions) {
    // A pool has its own access settings.
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
  g_growth_mutex.ResetAfterFork();
  g_memory_mutex.ResetAfterFork();
  g_regions.AbandonAfterFork();
  g_deferred.AbandonAfterFork();
  g_has_deferred.store(false);
  growth::ResetAfterFork();
  ResetHeldMemory();
  ResetPools();
  ResetDevices();
}

namespace hook {

namespace {

CUresult TryAlloc(CUdeviceptr* ptr, size_t bytes) {
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (ptr == nullptr || bytes == 0 || real::cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
      context == nullptr || real::cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return real::cuMemAlloc_v2(ptr, bytes);
  }
  if (CUresult r = AskWhetherCaptureAllows(); r != CUDA_SUCCESS) return r;
  NoteContext(context, device);
  EnsureControl();
  return Allocate(ptr, bytes, device, context);
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* ptr, size_t bytes) {
  return AllocateOrWait({bytes, Need::kCurrent}, [&] { return TryAlloc(ptr, bytes); });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height,
                            unsigned element_size) {
  // The driver chooses the pitch, so allocate one row to get it.
  CUdeviceptr row = 0;
  size_t row_pitch = 0;
  if (ptr == nullptr || pitch == nullptr || height < 2 || width > SIZE_MAX / 2 / height ||
      width * height < kTiny || CapturesOpen() ||
      real::cuMemAllocPitch_v2(&row, &row_pitch, width, 1, element_size) != CUDA_SUCCESS) {
    CUresult r = AllocateOrWait({width * height, Need::kCurrent}, [&] {
      return real::cuMemAllocPitch_v2(ptr, pitch, width, height, element_size);
    });
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
    return FreePlain(ptr, [&] { return real::cuMemFree_v2(ptr); });
  }
  if (CapturesOpen()) {
    if (CUresult r = AskWhetherCaptureAllows(); r != CUDA_SUCCESS) return r;
    // A wait for the GPU would invalidate the capture, so the free is deferred until it ends.
    Lock lock(g_memory_mutex);
    g_has_deferred.store(true, std::memory_order_relaxed);
    return g_deferred.Push(ptr) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  }
  // Waits like the driver's free, since submitted work may still use the memory. (For pool memory,
  // the driver requires that no work uses it.)
  if (owner == nullptr) owner = current;
  if (CUresult r = SynchronizeContext(owner); r != CUDA_SUCCESS) return r;
  Leaving leaving;
  Lock lock(g_memory_mutex);
  Found found = FindAllocation(ptr);
  if (found.block == nullptr || found.region->address + found.block->offset != ptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (found.region->pool != nullptr) {
    FreePoolBlock(found);
  } else {
    Remove(found, &leaving);
  }
  room::NoteFree();
  return CUDA_SUCCESS;
}

// Counts free space within slabs as free memory.
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

// The program exports memory to a network card or another driver, whose use of the memory the agent
// cannot track.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr ptr, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  CUresult r = real::cuMemGetHandleForAddressRange(handle, ptr, size, type, flags);
  if (r == CUDA_SUCCESS) {
    NoteBlocker(agent_protocol::kBlockerSharedVmm, "cuMemGetHandleForAddressRange");
  }
  return r;
}

}  // namespace hook
}  // namespace stasis::agent
