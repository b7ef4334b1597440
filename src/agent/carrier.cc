#include "agent/carrier.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "agent/cuda/contexts.h"
#include "agent/cuda/floor.h"
#include "agent/cuda/pools.h"
#include "agent/cuda/program_vmm.h"
#include "agent/descriptors.h"

namespace stasis::agent {
namespace {

// A region of ours, or a handle of the program's.
struct Item {
  Region* region;
  ProgramHandle* handle;
  bool returned;  // imported since the last release
};

Vector<Item> g_items;

CUmemGenericAllocationHandle& HandleOf(const Item& item) {
  return item.region != nullptr ? item.region->handle : item.handle->real;
}
KeptFd& KeptOf(const Item& item) {
  return item.region != nullptr ? item.region->kept : item.handle->kept;
}
bool& PresentIn(const Item& item) {
  return item.region != nullptr ? item.region->mapped : item.handle->present;
}
uint64_t BytesOf(const Item& item) {
  return item.region != nullptr ? item.region->bytes : item.handle->bytes;
}

// Driver calls want a context, and the device's own is the one that surely knows its memory.
void WorkOn(CUdevice device) {
  CUcontext context = ContextOn(device);
  if (context == nullptr) context = AnyContext();
  if (context != nullptr) real::cuCtxSetCurrent(context);
}

CUdevice DeviceOf(const Item& item) {
  return item.region != nullptr ? item.region->device : item.handle->device;
}

CUresult MapRegion(Region* region) {
  CUresult r = real::cuMemMap(region->address, region->bytes, 0, region->handle, 0);
  if (r != CUDA_SUCCESS) return r;
  r = GiveRegionAccess(region);
  if (r != CUDA_SUCCESS) real::cuMemUnmap(region->address, region->bytes);
  return r;
}

}  // namespace

bool ListCarried() {
  ReleaseUnusedPoolMemory();
  Lock lock(g_memory_mutex);
  g_items.Clear();
  for (Region* region : g_regions) {
    if (!g_items.Push({region, nullptr, false})) return false;
  }
  for (ProgramHandle* handle : g_program_handles) {
    if (!g_items.Push({nullptr, handle, false})) return false;
  }
  return true;
}

uint32_t CarriedCount() { return uint32_t(g_items.size()); }
bool IsMapped(uint32_t index) { return PresentIn(g_items[index]); }

wire::Range DescribeCarried(uint32_t index) {
  const Item& item = g_items[index];
  wire::Range range{};
  range.size_bytes = BytesOf(item);
  range.used_bytes = range.size_bytes;
  range.protection = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  range.device = DeviceAt(DeviceOf(item))->uuid;
  range.peer_access = DeviceAt(DeviceOf(item))->peers;
  if (item.region != nullptr) {
    range.address = item.region->address;
    range.kind = item.region->slab ? wire::RangeKind::kSlab : wire::RangeKind::kLarge;
    range.used_bytes = item.region->used;
    if (const Pool* pool = item.region->pool) {
      range.peer_access = 0;
      for (uint32_t d = 0; d < wire::kMaxDevices; ++d) {
        if (pool->access[d] != 0) range.peer_access |= 1ull << d;
      }
    }
  } else {
    range.kind = wire::RangeKind::kProgram;
    range.address = FirstMapping(item.handle, &range.protection, &range.peer_access);
  }
  return range;
}

CUresult ExportCarried(uint32_t index, int* fd) {
  const Item& item = g_items[index];
  if (KeptOf(item).held()) {
    *fd = KeptOf(item).Intact() ? fcntl(KeptOf(item).fd, F_DUPFD_CLOEXEC, 0) : -1;
    return *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  }
  WorkOn(DeviceOf(item));
  return real::cuMemExportToShareableHandle(fd, HandleOf(item),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

CUresult HoldCarried(uint32_t index) {
  const Item& item = g_items[index];
  if (KeptOf(item).held()) return CUDA_SUCCESS;
  int fd = -1;
  CUresult r = ExportCarried(index, &fd);
  if (r != CUDA_SUCCESS) return r;
  if (!KeptOf(item).Keep(fd)) r = CUDA_ERROR_OPERATING_SYSTEM;
  close(fd);
  return r;
}

namespace {

// Who brought the memory knows on which GPU it made it; what the driver says there is not asked.
wire::Uuid g_moved_to[wire::kMaxDevices];
bool g_moved[wire::kMaxDevices];

}  // namespace

void MoveCarried(uint32_t index, const wire::Uuid& gpu) {
  const CUdevice device = DeviceOf(g_items[index]);
  g_moved[device] = memcmp(&DeviceAt(device)->uuid, &gpu, sizeof(gpu)) != 0;
  g_moved_to[device] = gpu;
}

void SettleMoves() {
  for (uint32_t i = 0; i < wire::kMaxDevices; ++i) {
    if (g_moved[i]) DeviceAt(CUdevice(i))->uuid = g_moved_to[i];
    g_moved[i] = false;
  }
}

void LetGoOfCarried() {
  for (const Item& item : g_items) {
    if (!PresentIn(item)) KeptOf(item).Close();
  }
}

CUresult TakeBackCarried() {
  for (uint32_t i = 0; i < CarriedCount(); ++i) {
    if (IsMapped(i)) continue;
    const KeptFd& kept = KeptOf(g_items[i]);
    if (!kept.held() || !kept.Intact()) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult r = MapCarried(i, kept.fd); r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

CUresult ReleaseCarried(uint32_t index, bool hold) {
  const Item& item = g_items[index];
  WorkOn(DeviceOf(item));
  CUresult r = item.region != nullptr ? real::cuMemUnmap(item.region->address, item.region->bytes)
                                      : UnmapAll(item.handle);
  if (r == CUDA_SUCCESS) r = real::cuMemRelease(HandleOf(item));
  if (r != CUDA_SUCCESS) return r;
  PresentIn(item) = false;
  g_items[index].returned = false;
  // It keeps the memory alive as a handle does, and stands in the way of the driver's checkpoint.
  if (!hold) KeptOf(item).Close();
  return CUDA_SUCCESS;
}

CUresult MapCarried(uint32_t index, int fd) {
  const Item& item = g_items[index];
  WorkOn(DeviceOf(item));
  KeptFd kept;
  if (!kept.Keep(fd)) return CUDA_ERROR_OPERATING_SYSTEM;
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = real::cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t(fd)),
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (r == CUDA_SUCCESS) {
    HandleOf(item) = handle;
    r = item.region != nullptr ? MapRegion(item.region) : MapAll(item.handle);
    if (r != CUDA_SUCCESS) real::cuMemRelease(handle);
  }
  if (r != CUDA_SUCCESS) {
    kept.Close();
    return r;
  }
  KeptOf(item).Close();
  KeptOf(item) = kept;
  PresentIn(item) = true;
  g_items[index].returned = true;
  return CUDA_SUCCESS;
}

void DropReturned() {
  for (uint32_t i = 0; i < CarriedCount(); ++i) {
    if (g_items[i].returned && IsMapped(i)) ReleaseCarried(i, /*hold=*/false);
  }
}

void AbandonListAfterFork() { g_items.AbandonAfterFork(); }

bool KeptAreIntact() {
  Lock lock(g_memory_mutex);
  for (Region* region : g_regions) {
    if (!region->kept.Intact()) return false;
  }
  for (ProgramHandle* handle : g_program_handles) {
    if (!handle->kept.Intact()) return false;
  }
  return true;
}

void CountCarried(wire::HelloReply* reply) {
  Lock lock(g_memory_mutex);
  reply->device_count = uint32_t(DeviceCount());
  for (uint32_t i = 0; i < reply->device_count; ++i) {
    const Device* device = KnownDevice(CUdevice(i));
    if (device == nullptr) continue;
    reply->devices[i].uuid = device->uuid;
    reply->devices[i].fast = device->fast ? 1 : 0;
    reply->devices[i].floor_bytes = FloorBytes(CUdevice(i));
  }
  auto add = [&](CUdevice device, uint64_t bytes, uint64_t used, const KeptFd& kept, bool here) {
    wire::DeviceAccount& account = reply->devices[device];
    ++account.ranges;
    account.range_bytes += bytes;
    account.used_bytes += used;
    ++reply->range_count;
    reply->range_bytes += bytes;
    reply->kept_descriptors += kept.held() ? 1 : 0;
    reply->imported_ranges += kept.held() && here ? 1 : 0;
    reply->imported_bytes += kept.held() && here ? bytes : 0;
  };
  for (Region* region : g_regions) {
    add(region->device, region->bytes, region->used, region->kept, region->mapped);
  }
  for (ProgramHandle* handle : g_program_handles) {
    add(handle->device, handle->bytes, handle->bytes, handle->kept, handle->present);
  }
}

}  // namespace stasis::agent
