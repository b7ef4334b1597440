// One handle of device memory: a region of the agent or a handle of the program. A suspend treats
// both alike; these functions hide the differences.
//
// Threads: the rules of memory.h.
#pragma once

#include "agent/cuda/ipc.h"
#include "agent/cuda/memory.h"
#include "agent/cuda/program_vmm.h"

namespace stasis::agent {

struct Item {
  Region* region;
  ProgramHandle* handle;
};

inline CUmemGenericAllocationHandle& HandleOf(const Item& item) {
  return item.region != nullptr ? item.region->handle : item.handle->real;
}
inline KeptFd& KeptOf(const Item& item) {
  return item.region != nullptr ? item.region->kept : item.handle->kept;
}
inline bool& PresentIn(const Item& item) {
  return item.region != nullptr ? item.region->mapped : item.handle->present;
}
inline uint64_t BytesOf(const Item& item) {
  return item.region != nullptr ? item.region->bytes : item.handle->bytes;
}
inline CUdevice DeviceOf(const Item& item) {
  return item.region != nullptr ? item.region->device : item.handle->device;
}
// Returns the import to which the memory belongs, or null if the memory is this process's own.
inline Import* ImportOf(const Item& item) {
  return item.region != nullptr ? item.region->import : item.handle->import;
}

inline CUresult UnmapItem(const Item& item) {
  return item.region != nullptr ? real::cuMemUnmap(item.region->address, item.region->bytes)
                                : UnmapAll(item.handle);
}
inline CUresult MapItem(const Item& item) {
  return item.region != nullptr ? MapRegion(item.region) : MapAll(item.handle);
}

// Makes a context current for driver calls on the item's memory.
void WorkOn(const Item& item);

// Unmaps and releases the memory. After an error the item is unchanged, or absent if it could not
// be mapped again.
CUresult ReleaseItem(const Item& item);

// Exports a descriptor of the memory, which the caller must close. Memory that is not imported must
// be present.
CUresult ExportItem(const Item& item, int* fd);
// Imports the memory behind `fd`, which stays the caller's, and maps it at its old addresses. After
// an error the item is still absent.
CUresult ImportItem(const Item& item, int fd);

// Calls `f` with each imported region and each imported handle until `f` returns false.
template <class F>
void ForEachImport(F f) {
  for (Region* region : g_regions) {
    if (region->import != nullptr && !f(Item{region, nullptr})) return;
  }
  for (ProgramHandle* handle : g_program_handles) {
    if (handle->import != nullptr && !f(Item{nullptr, handle})) return;
  }
}

}  // namespace stasis::agent
