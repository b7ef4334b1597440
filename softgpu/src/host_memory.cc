// Pinned host memory, and attributes of pointers.

#include <string.h>
#include <sys/mman.h>

#include "api.h"
#include "context.h"
#include "driver.h"

namespace softgpu {

using Lock = std::lock_guard<std::mutex>;

void FreeHostRange(const Range& range) {
  if (range.kind == RangeKind::kHost) {
    munmap(reinterpret_cast<void*>(range.address), RoundUp(range.bytes, kPage));
  }
  driver().memory.RemoveRange(range.address);
}

namespace {

bool IsHost(const Range* range) {
  return range != nullptr &&
         (range->kind == RangeKind::kHost || range->kind == RangeKind::kRegistered);
}

int DeviceOf(const Range& range) {
  return range.memory != nullptr    ? range.memory->ordinal
         : range.context != nullptr ? range.context->ordinal
                                    : 0;
}

template <class T>
void Put(void* data, T value) {
  memcpy(data, &value, sizeof(T));  // NOLINT(bugprone-sizeof-expression): T may be a pointer
}

// `range` is null for an unknown pointer. For such a pointer, queries of some attributes (for
// example MEMORY_TYPE) fail, and other attributes are zero or invalid.
CUresult Answer(CUpointer_attribute attribute, CUdeviceptr ptr, const Range* range, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Memory of cuMemCreate and of pools belongs to no context.
      if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
      Put(data, range->kind == RangeKind::kMapped || range->kind == RangeKind::kPool
                    ? nullptr
                    : Handle(range->context));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
      Put(data, IsHost(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
      Put(data, ptr);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!IsHost(range) && (range == nullptr || range->kind != RangeKind::kManaged)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      Put(data, ptr);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      Put(data, range != nullptr && range->sync_memops ? 1 : 0);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
      Put(data, static_cast<unsigned long long>(range->buffer_id));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      Put(data, static_cast<unsigned>(range != nullptr && range->kind == RangeKind::kManaged));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      Put(data, range == nullptr ? CU_DEVICE_INVALID : DeviceOf(*range));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      Put(data, static_cast<unsigned>(range != nullptr && range->kind == RangeKind::kDevice));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      Put(data, static_cast<CUdeviceptr>(range != nullptr ? range->address : 0));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      Put(data, static_cast<size_t>(range != nullptr ? range->bytes : 0));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      Put(data, static_cast<unsigned>(range != nullptr));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      Put(data,
          static_cast<unsigned long long>(range != nullptr && range->kind == RangeKind::kMapped
                                              ? range->memory->properties.requestedHandleTypes
                                              : 0));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      Put(data, 0U);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
      Put(data, range->kind == RangeKind::kMapped
                    ? (range->protection & PROT_WRITE  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                       : range->protection & PROT_READ ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                       : CU_MEM_ACCESS_FLAGS_PROT_NONE)
                    : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      Put(data, static_cast<const void*>(range != nullptr ? range->pool : nullptr));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
      Put(data, static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(range->memory)));
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

namespace api {

CUresult cuMemHostAlloc(void** ptr, size_t bytes, unsigned int flags) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (ptr == nullptr || bytes == 0 || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  void* got = mmap(nullptr, RoundUp(bytes, kPage), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Range range{RangeKind::kHost, reinterpret_cast<uint64_t>(got), bytes, nullptr, context};
  range.host_flags = flags;
  driver().memory.AddRange(range);
  *ptr = got;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** ptr, size_t bytes) { return cuMemHostAlloc(ptr, bytes, 0); }

CUresult cuMemFreeHost(void* ptr) {
  Context* owner = nullptr;
  {
    Lock lock(driver().mutex);
    Range* range = driver().memory.At(reinterpret_cast<uint64_t>(ptr));
    if (range == nullptr || range->kind != RangeKind::kHost) return CUDA_ERROR_INVALID_VALUE;
    owner = range->context;
  }
  WaitForContext(owner);
  Lock lock(driver().mutex);
  Range* range = driver().memory.At(reinterpret_cast<uint64_t>(ptr));
  if (range == nullptr || range->kind != RangeKind::kHost) return CUDA_ERROR_INVALID_VALUE;
  FreeHostRange(Range(*range));
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* ptr, size_t bytes, unsigned int flags) {
  Lock lock(driver().mutex);
  Context* context = nullptr;
  if (ptr == nullptr || bytes == 0 || flags > 15) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_MEMHOSTREGISTER_IOMEMORY) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  auto at = reinterpret_cast<uint64_t>(ptr);
  if (driver().memory.Find(at) != nullptr || driver().memory.Find(at + bytes - 1) != nullptr) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  Range range{RangeKind::kRegistered, at, bytes, nullptr, context};
  range.host_flags = flags;
  driver().memory.AddRange(range);
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* ptr) {
  Context* owner = nullptr;
  auto at = reinterpret_cast<uint64_t>(ptr);
  {
    Lock lock(driver().mutex);
    Range* range = driver().memory.At(at);
    if (range == nullptr || range->kind != RangeKind::kRegistered) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    owner = range->context;
  }
  WaitForContext(owner);
  Lock lock(driver().mutex);
  driver().memory.RemoveRange(at);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* ptr, unsigned int flags) {
  Lock lock(driver().mutex);
  if (device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!IsHost(driver().memory.Find(reinterpret_cast<uint64_t>(ptr))))
    return CUDA_ERROR_INVALID_VALUE;
  *device = reinterpret_cast<uint64_t>(ptr);  // unified addresses
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* ptr) {
  Lock lock(driver().mutex);
  Range* range = driver().memory.Find(reinterpret_cast<uint64_t>(ptr));
  if (flags == nullptr || !IsHost(range)) return CUDA_ERROR_INVALID_VALUE;
  *flags = range->host_flags;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  Lock lock(driver().mutex);
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Range* range = driver().memory.Find(ptr);
  if (range == nullptr && attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Answer(attribute, ptr, range, data);
}

// Unlike cuPointerGetAttribute, this function also accepts unknown pointers, whose attributes are
// null.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  Lock lock(driver().mutex);
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Range* range = driver().memory.Find(ptr);
  for (unsigned i = 0; i < count; ++i) {
    if (Answer(attributes[i], ptr, range, data[i]) == CUDA_SUCCESS) continue;
    bool word = attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                attributes[i] == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
    memset(data[i], 0, word ? 4 : 8);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  Lock lock(driver().mutex);
  Range* range = driver().memory.Find(ptr);
  if (value == nullptr || range == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  range->sync_memops = *static_cast<const unsigned*>(value) != 0;
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace softgpu
