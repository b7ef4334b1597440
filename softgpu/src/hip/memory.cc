// Allocation and queries of memory, where HIP differs from the driver.

#include <string.h>

#include "hip/face.h"

namespace softgpu::hip {
namespace {

using Lock = std::lock_guard<std::mutex>;

// An allocation of no bytes succeeds and returns a null pointer. Otherwise calls `allocate`.
template <class P, class F>
CUresult Allocate(P* pointer, size_t bytes, F allocate) {
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (bytes != 0) return allocate();
  *pointer = P();
  return CUDA_SUCCESS;
}

// HIP leaves the driver's reserved bytes undefined.
CUmemAllocationProp WithoutPadding(const CUmemAllocationProp& properties) {
  CUmemAllocationProp copy = properties;
  memset(copy.allocFlags.reserved, 0, sizeof(copy.allocFlags.reserved));
  return copy;
}

hipMemoryType TypeOf(CUdeviceptr pointer) {
  unsigned managed = 0;
  CUmemorytype type{};
  softgpu::api::cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer);
  if (managed != 0) return hipMemoryTypeManaged;
  CUresult r =
      softgpu::api::cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
  if (r != CUDA_SUCCESS) return hipMemoryTypeUnregistered;
  return type == CU_MEMORYTYPE_HOST ? hipMemoryTypeHost : hipMemoryTypeDevice;
}

}  // namespace

namespace api {

CUresult cuMemAlloc_v2(CUdeviceptr* ptr, size_t bytes) {
  return Allocate(ptr, bytes, [&] { return softgpu::api::cuMemAlloc_v2(ptr, bytes); });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* ptr, size_t* pitch, size_t width, size_t height,
                            unsigned int element_size) {
  return Allocate(ptr, width * height, [&] {
    return softgpu::api::cuMemAllocPitch_v2(ptr, pitch, width, height, element_size);
  });
}

CUresult cuMemAllocHost_v2(void** ptr, size_t bytes) {
  return Allocate(ptr, bytes, [&] { return softgpu::api::cuMemAllocHost_v2(ptr, bytes); });
}

CUresult cuMemHostAlloc(void** ptr, size_t bytes, unsigned int flags) {
  return Allocate(ptr, bytes, [&] {
    return softgpu::api::cuMemHostAlloc(ptr, bytes, flags & ~kHostMallocOwnFlags);
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* ptr, size_t bytes, unsigned int flags) {
  return Allocate(ptr, bytes, [&] { return softgpu::api::cuMemAllocManaged(ptr, bytes, flags); });
}

CUresult cuMemAllocAsync(CUdeviceptr* ptr, size_t bytes, CUstream stream) {
  return Allocate(ptr, bytes, [&] { return softgpu::api::cuMemAllocAsync(ptr, bytes, stream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  return Allocate(ptr, bytes,
                  [&] { return softgpu::api::cuMemAllocFromPoolAsync(ptr, bytes, pool, stream); });
}

CUresult cuMemFree_v2(CUdeviceptr ptr) {
  return ptr == 0 ? CUDA_SUCCESS : softgpu::api::cuMemFree_v2(ptr);
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) {
  return ptr == 0 ? CUDA_SUCCESS : softgpu::api::cuMemFreeAsync(ptr, stream);
}

CUresult cuMemFreeHost(void* ptr) {
  return ptr == nullptr ? CUDA_SUCCESS : softgpu::api::cuMemFreeHost(ptr);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUmemAllocationProp copy = WithoutPadding(*properties);
  return softgpu::api::cuMemCreate(handle, size, &copy, flags);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type) {
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
      Version() < kFirstVersionWithDescriptorsByValue) {
    if (os_handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    os_handle = reinterpret_cast<void*>(intptr_t{*static_cast<const int*>(os_handle)});
  }
  return softgpu::api::cuMemImportFromShareableHandle(handle, os_handle, type);
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUmemAllocationProp copy = WithoutPadding(*properties);
  return softgpu::api::cuMemGetAllocationGranularity(granularity, &copy, option);
}

CUresult cuMemAdvise(CUdeviceptr ptr, size_t count, CUmem_advise advice, CUdevice device) {
  return softgpu::api::cuMemAdvise(ptr, count, advice, device);  // no advice has an effect
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned int) {
  return softgpu::api::cuIpcOpenMemHandle_v2(ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  CUresult r = softgpu::api::cuPointerGetAttribute(data, attribute, ptr);
  if (r == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
    *static_cast<hipMemoryType*>(data) = TypeOf(ptr);
  }
  return r;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  CUresult r = softgpu::api::cuPointerGetAttributes(count, attributes, data, ptr);
  for (unsigned i = 0; r == CUDA_SUCCESS && i < count; ++i) {
    if (attributes[i] != CU_POINTER_ATTRIBUTE_MEMORY_TYPE) continue;
    *static_cast<hipMemoryType*>(data[i]) = TypeOf(ptr);
  }
  return r;
}

}  // namespace api

namespace own {

hipError_t hipMallocPitch(void** ptr, size_t* pitch, size_t width, size_t height) {
  return api::cuMemAllocPitch_v2(reinterpret_cast<CUdeviceptr*>(ptr), pitch, width, height, 4);
}

hipError_t hipMalloc3D(hipPitchedPtr* ptr, hipExtent extent) {
  if (ptr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ptr->xsize = extent.width;
  ptr->ysize = extent.height;
  return hipMallocPitch(&ptr->ptr, &ptr->pitch, extent.width, extent.height * extent.depth);
}

hipError_t hipExtMallocWithFlags(void** ptr, size_t bytes, unsigned int flags) {
  if (flags > hipDeviceMallocUncached) return CUDA_ERROR_INVALID_VALUE;
  return api::cuMemAlloc_v2(reinterpret_cast<CUdeviceptr*>(ptr), bytes);
}

hipError_t hipMalloc3DArray(hipArray_t*, const hipChannelFormatDesc*, hipExtent, unsigned int) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

hipError_t hipMallocMipmappedArray(hipMipmappedArray_t*, const hipChannelFormatDesc*, hipExtent,
                                   unsigned int, unsigned int) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

// An unknown pointer is not an error; its type is hipMemoryTypeUnregistered.
hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* ptr) {
  if (attributes == nullptr || ptr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUdeviceptr address = Address(ptr);
  *attributes = {};
  attributes->type = TypeOf(address);
  attributes->device = CU_DEVICE_INVALID;
  if (attributes->type == hipMemoryTypeUnregistered) return CUDA_SUCCESS;
  softgpu::api::cuPointerGetAttribute(&attributes->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      address);
  attributes->devicePointer = const_cast<void*>(ptr);
  attributes->isManaged = attributes->type == hipMemoryTypeManaged ? 1 : 0;
  if (attributes->type != hipMemoryTypeDevice) attributes->hostPointer = const_cast<void*>(ptr);
  return CUDA_SUCCESS;
}

hipError_t hipMemPtrGetInfo(void* ptr, size_t* size) {
  return softgpu::api::cuMemGetAddressRange_v2(nullptr, size, Address(ptr));
}

hipError_t hipMemPoolExportToShareableHandle(void* handle, hipMemPool_t pool,
                                             CUmemAllocationHandleType type, unsigned int flags) {
  return softgpu::api::cuMemPoolExportToShareableHandle(handle, pool, type, flags);
}

hipError_t hipMemPoolImportFromShareableHandle(hipMemPool_t* pool, void* handle,
                                               CUmemAllocationHandleType type, unsigned int flags) {
  return softgpu::api::cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
}

}  // namespace own
}  // namespace softgpu::hip
