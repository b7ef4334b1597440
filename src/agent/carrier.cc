#include "agent/carrier.h"

#include <string.h>
#include <unistd.h>

#include "agent/cuda/floor.h"
#include "agent/cuda/item.h"
#include "agent/cuda/pools.h"
#include "agent/descriptors.h"

namespace stasis::agent {
namespace {

struct Carried : Item {
  bool returned;  // mapped by MapCarried since the last release
};

Vector<Carried> g_items;

// Imported memory is saved by the process that owns it, not here.
bool Travels(const Item& item) { return ImportOf(item) == nullptr; }

}  // namespace

bool ListCarried() {
  ReleaseUnusedPoolMemory();
  Lock lock(g_memory_mutex);
  g_items.Clear();
  for (Region* region : g_regions) {
    const Item item{region, nullptr};
    if (Travels(item) && !g_items.Push({item, false})) return false;
  }
  for (ProgramHandle* handle : g_program_handles) {
    const Item item{nullptr, handle};
    if (Travels(item) && !g_items.Push({item, false})) return false;
  }
  return true;
}

uint32_t CarriedCount() { return uint32_t(g_items.size()); }
bool IsMapped(uint32_t index) { return PresentIn(g_items[index]); }

namespace {

agent_protocol::Range Describe(const Item& item) {
  agent_protocol::Range range{};
  range.size_bytes = BytesOf(item);
  range.used_bytes = range.size_bytes;
  range.protection = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  range.device = DeviceAt(DeviceOf(item))->uuid;
  range.peer_access = DeviceAt(DeviceOf(item))->peers;
  if (item.region != nullptr) {
    range.address = item.region->address;
    range.kind =
        item.region->slab ? agent_protocol::RangeKind::kSlab : agent_protocol::RangeKind::kLarge;
    range.used_bytes = item.region->used;
    if (const Pool* pool = item.region->pool) {
      range.peer_access = 0;
      for (uint32_t d = 0; d < agent_protocol::kMaxDevices; ++d) {
        if (pool->access[d] != 0) range.peer_access |= 1ull << d;
      }
    }
  } else {
    range.kind = agent_protocol::RangeKind::kProgram;
    range.address = FirstMapping(item.handle, &range.protection, &range.peer_access);
  }
  return range;
}

}  // namespace

agent_protocol::Range DescribeCarried(uint32_t index) { return Describe(g_items[index]); }

// The mutex keeps the items from being freed. It is held while the driver exports one batch.
uint32_t ExportRunning(uint32_t first, uint32_t most, agent_protocol::Range* ranges, int* fds) {
  Lock lock(g_memory_mutex);
  uint32_t at = 0;
  uint32_t exported = 0;
  auto add = [&](const Item& item) {
    if (!Travels(item) || at++ < first) return true;
    if (exported == most || ExportItem(item, &fds[exported]) != CUDA_SUCCESS) return false;
    ranges[exported++] = Describe(item);
    return true;
  };
  for (Region* region : g_regions) {
    // Skip unused memory of pools: a suspend releases it before it lists the memory, and this list
    // must have the same order as the list of the suspend.
    if (region->pool != nullptr && region->blocks.size() == 0) continue;
    if (!add({region, nullptr})) return exported;
  }
  for (ProgramHandle* handle : g_program_handles) {
    if (!add({nullptr, handle})) return exported;
  }
  return exported;
}

CUresult ExportCarried(uint32_t index, int* fd) { return ExportItem(g_items[index], fd); }

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

// The client reports on which GPU it created the memory. The driver would still report the old GPU.
agent_protocol::Uuid g_moved_to[agent_protocol::kMaxDevices];
bool g_moved[agent_protocol::kMaxDevices];

}  // namespace

void MoveCarried(uint32_t index, const agent_protocol::Uuid& gpu) {
  const CUdevice device = DeviceOf(g_items[index]);
  g_moved[device] = memcmp(&DeviceAt(device)->uuid, &gpu, sizeof(gpu)) != 0;
  g_moved_to[device] = gpu;
}

void ApplyMoves() {
  for (uint32_t i = 0; i < agent_protocol::kMaxDevices; ++i) {
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
  if (CUresult r = ReleaseItem(item); r != CUDA_SUCCESS) return r;
  g_items[index].returned = false;
  // A descriptor keeps the memory alive as a handle does, and prevents the driver's checkpoint.
  if (!hold) KeptOf(item).Close();
  return CUDA_SUCCESS;
}

CUresult MapCarried(uint32_t index, int fd) {
  const Item& item = g_items[index];
  KeptFd kept;
  if (!kept.Keep(fd)) return CUDA_ERROR_OPERATING_SYSTEM;
  if (CUresult r = ImportItem(item, fd); r != CUDA_SUCCESS) {
    kept.Close();
    return r;
  }
  KeptOf(item).Close();
  KeptOf(item) = kept;
  g_items[index].returned = true;
  return CUDA_SUCCESS;
}

namespace {

// A second mapping of a handle's memory, for reading and writing.
class View {
 public:
  View(CUmemGenericAllocationHandle handle, uint64_t bytes, CUdevice device) : bytes_(bytes) {
    result = real::cuMemAddressReserve(&address_, bytes_, kGranularity, 0, 0);
    if (result != CUDA_SUCCESS) return;
    reserved_ = true;
    result = real::cuMemMap(address_, bytes_, 0, handle, 0);
    if (result != CUDA_SUCCESS) return;
    mapped_ = true;
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                           CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = real::cuMemSetAccess(address_, bytes_, &access, 1);
  }
  ~View() {
    if (mapped_) real::cuMemUnmap(address_, bytes_);
    if (reserved_) real::cuMemAddressFree(address_, bytes_);
  }
  View(const View&) = delete;

  CUdeviceptr address() const { return address_; }
  CUresult result;

 private:
  CUdeviceptr address_ = 0;
  uint64_t bytes_;
  bool reserved_ = false;
  bool mapped_ = false;
};

CUresult MakeOwn(const Item& item, CUmemGenericAllocationHandle* own) {
  CUmemAllocationProp properties = ShareableProperties(DeviceOf(item));
  if (item.handle != nullptr) {
    properties.requestedHandleTypes =
        CUmemAllocationHandleType(properties.requestedHandleTypes | item.handle->asked);
  }
  return real::cuMemCreate(own, BytesOf(item), &properties, 0);
}

CUresult CopyMemory(const Item& item, CUmemGenericAllocationHandle to) {
  const View target(to, BytesOf(item), DeviceOf(item));
  if (target.result != CUDA_SUCCESS) return target.result;
  const View source(HandleOf(item), BytesOf(item), DeviceOf(item));
  if (source.result != CUDA_SUCCESS) return source.result;
  CUresult r = real::cuMemcpyDtoD_v2(target.address(), source.address(), BytesOf(item));
  return r == CUDA_SUCCESS ? real::cuCtxSynchronize() : r;
}

}  // namespace

CUresult OwnCarried(uint32_t index) {
  const Item& item = g_items[index];
  if (!PresentIn(item) || !KeptOf(item).held()) return CUDA_SUCCESS;
  WorkOn(item);
  CUmemGenericAllocationHandle own = 0, imported = HandleOf(item);
  CUresult r = MakeOwn(item, &own);
  if (r != CUDA_SUCCESS) return r;
  r = CopyMemory(item, own);
  if (r == CUDA_SUCCESS) r = UnmapItem(item);
  if (r != CUDA_SUCCESS) {
    real::cuMemRelease(own);
    return r;
  }
  HandleOf(item) = own;
  r = MapItem(item);
  if (r == CUDA_SUCCESS) {
    real::cuMemRelease(imported);
    KeptOf(item).Close();
    return CUDA_SUCCESS;
  }
  real::cuMemRelease(own);
  HandleOf(item) = imported;
  if (MapItem(item) != CUDA_SUCCESS) {
    real::cuMemRelease(imported);
    PresentIn(item) = false;
  }
  return r;
}

void DropReturned() {
  for (uint32_t i = 0; i < CarriedCount(); ++i) {
    if (g_items[i].returned && IsMapped(i)) ReleaseCarried(i, /*hold=*/false);
  }
}

void ResetCarrier() {
  g_items.AbandonAfterFork();
  for (bool& moved : g_moved) moved = false;
}

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

bool ImportedAreMapped() {
  Lock lock(g_memory_mutex);
  for (const Region* region : g_regions) {
    if (region->kept.held() && region->mapped) return true;
  }
  for (const ProgramHandle* handle : g_program_handles) {
    if (handle->kept.held() && handle->present) return true;
  }
  return false;
}

void CountCarried(agent_protocol::HelloReply* reply) {
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
    agent_protocol::DeviceAccount& account = reply->devices[device];
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
    if (!Travels({region, nullptr})) continue;
    add(region->device, region->bytes, region->used, region->kept, region->mapped);
  }
  for (ProgramHandle* handle : g_program_handles) {
    if (!Travels({nullptr, handle})) continue;
    add(handle->device, handle->bytes, handle->bytes, handle->kept, handle->present);
  }
}

}  // namespace stasis::agent
