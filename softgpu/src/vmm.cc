// Virtual memory management: addresses, handles, mappings and access, and export and import as
// files.

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "api.h"
#include "capture.h"
#include "context.h"
#include "driver.h"

namespace softgpu::api {

using Lock = std::lock_guard<std::mutex>;

namespace {

CUresult CheckProperties(const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (prop->location.id < 0 || prop->location.id >= driver().device_count) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  int known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  // Memory of this handle type can be allocated but not exported.
  if (getenv("SOFTGPU_FABRIC") != nullptr) known |= CU_MEM_HANDLE_TYPE_FABRIC;
  if ((prop->requestedHandleTypes & ~known) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (prop->allocFlags.compressionType != 0 || prop->allocFlags.usage != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

Memory* FindHandle(CUmemGenericAllocationHandle handle) {
  Memory* memory = driver().memory.FindMemory(handle);
  return memory != nullptr && memory->kind == MemoryKind::kHandle && memory->handle_references > 0
             ? memory
             : nullptr;
}

void Unreference(Memory* memory) {
  if (--memory->references == 0) driver().memory.Destroy(memory);
}

CUmemGenericAllocationHandle HandleOf(Memory* memory) {
  return reinterpret_cast<CUmemGenericAllocationHandle>(memory);
}

// Returns the mappings that cover [address, address + size) without a gap, or nothing.
std::vector<Range*> Mapped(CUdeviceptr address, size_t size) {
  std::vector<Range*> found;
  for (CUdeviceptr at = address; at < address + size;) {
    Range* range = driver().memory.At(at);
    if (range == nullptr || range->kind != RangeKind::kMapped ||
        at + range->bytes > address + size) {
      return {};
    }
    found.push_back(range);
    at += range->bytes;
  }
  return found;
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  if (granularity == nullptr || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult r = CheckProperties(prop); r != CUDA_SUCCESS) return r;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr address,
                             unsigned long long flags) {
  Lock lock(driver().mutex);
  if (ptr == nullptr || size == 0 || size % kGranularity != 0 || flags != 0 ||
      (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *ptr = driver().memory.addresses().Reserve(size, std::max(alignment, kGranularity), address);
  return *ptr != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  Lock lock(driver().mutex);
  auto& ranges = driver().memory.ranges();
  auto it = ranges.lower_bound(ptr);
  if (it != ranges.end() && it->first < ptr + size)
    return CUDA_ERROR_INVALID_VALUE;  // still mapped
  return driver().memory.addresses().Release(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  Lock lock(driver().mutex);
  if (handle == nullptr || flags != 0 || size == 0 || size % kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult r = CheckProperties(prop); r != CUDA_SUCCESS) return r;
  if (CUresult r = RefuseUnsafe(); r != CUDA_SUCCESS) return r;
  Memory* memory = nullptr;
  CUresult r = driver().memory.Create(MemoryKind::kHandle, prop->location.id, size,
                                      prop->requestedHandleTypes != 0, &memory);
  if (r != CUDA_SUCCESS) return r;
  memory->properties = *prop;
  memory->handle_references = 1;
  *handle = HandleOf(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Lock lock(driver().mutex);
  Memory* memory = FindHandle(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  --memory->handle_references;
  Unreference(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  Lock lock(driver().mutex);
  Memory* memory = FindHandle(handle);
  if (memory == nullptr || flags != 0 || ptr % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  // As in the real driver, a handle can only be mapped as a whole.
  if (offset != 0 || size != memory->bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().memory.addresses().Covers(ptr, size)) return CUDA_ERROR_INVALID_VALUE;
  auto& ranges = driver().memory.ranges();
  auto next = ranges.lower_bound(ptr);
  if ((next != ranges.end() && next->first < ptr + size) || driver().memory.Find(ptr) != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult r = driver().memory.MapAlias(memory, ptr); r != CUDA_SUCCESS) return r;
  ++memory->references;
  driver().memory.AddRange({RangeKind::kMapped, ptr, size, memory});
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  std::vector<Context*> contexts;
  {
    Lock lock(driver().mutex);
    if (Mapped(ptr, size).empty()) return CUDA_ERROR_INVALID_VALUE;
    for (auto& [context, owned] : driver().contexts) contexts.push_back(context);
  }
  // Unfinished work may use the memory.
  for (Context* context : contexts) WaitForContext(context);
  Lock lock(driver().mutex);
  for (Range* range : Mapped(ptr, size)) {
    Memory* memory = range->memory;
    driver().memory.UnmapAlias(*range);
    driver().memory.RemoveRange(range->address);
    Unreference(memory);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  Lock lock(driver().mutex);
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Range*> mapped = Mapped(ptr, size);
  if (mapped.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (desc[i].location.id < 0 || desc[i].location.id >= driver().device_count) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
  }
  for (Range* range : mapped) {
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bit = 1u << desc[i].location.id;
      const bool writes = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      const bool reads = writes || desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ;
      range->writers = writes ? range->writers | bit : range->writers & ~bit;
      range->readers = reads ? range->readers | bit : range->readers & ~bit;
    }
    // The CPU does the work of all devices, so memory gets the most permissive access of any
    // device.
    range->protection =
        (range->readers != 0 ? PROT_READ : 0) | (range->writers != 0 ? PROT_WRITE : 0);
    mprotect(reinterpret_cast<void*>(range->address), range->bytes, range->protection);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  Lock lock(driver().mutex);
  Range* range = driver().memory.Find(ptr);
  if (flags == nullptr || location == nullptr || range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (range->kind != RangeKind::kMapped) {
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
  }
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 ||
      location->id >= driver().device_count) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint32_t bit = 1u << location->id;
  *flags = (range->writers & bit) != 0   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : (range->readers & bit) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                         : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  Lock lock(driver().mutex);
  Memory* memory = FindHandle(handle);
  if (prop == nullptr || memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = memory->properties;
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  Lock lock(driver().mutex);
  Range* range = driver().memory.Find(reinterpret_cast<uint64_t>(address));
  if (handle == nullptr || range == nullptr || range->kind != RangeKind::kMapped) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++range->memory->references;
  ++range->memory->handle_references;
  *handle = HandleOf(range->memory);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  Lock lock(driver().mutex);
  Memory* memory = FindHandle(handle);
  if (shareable == nullptr || memory == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (memory->imported_handle || !memory->keep) return CUDA_ERROR_INVALID_VALUE;
  Fd file;
  if (CUresult r = driver().broker.Fetch(memory->ticket, &file); r != CUDA_SUCCESS) return r;
  *static_cast<int*>(shareable) = file.Release();
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type) {
  Lock lock(driver().mutex);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  int given = int(reinterpret_cast<intptr_t>(os_handle));
  int physical = DeviceOfFile(given);
  struct stat s;
  if (physical < 0 || fstat(given, &s) != 0 || s.st_size == 0 || s.st_size % kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int ordinal = -1;
  for (int i = 0; i < driver().device_count; ++i) {
    if (driver().devices[i].physical == physical) ordinal = i;
  }
  if (ordinal < 0) return CUDA_ERROR_INVALID_DEVICE;
  Fd file(fcntl(given, F_DUPFD_CLOEXEC, 0));
  Memory* memory = nullptr;
  CUresult r =
      driver().memory.Adopt(MemoryKind::kHandle, ordinal, file, uint64_t(s.st_size), &memory);
  if (r != CUDA_SUCCESS) return r;
  memory->handle_references = 1;
  memory->imported_handle = true;
  memory->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  memory->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
  *handle = HandleOf(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemGetHandleForAddressRange(void*, CUdeviceptr, size_t, CUmemRangeHandleType,
                                       unsigned long long) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace softgpu::api
