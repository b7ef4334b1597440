// HIP's own copies and fills: those with a direction, in two or three dimensions, or between
// devices.

#include <string.h>

#include "hip/face.h"

namespace softgpu::hip {
namespace {

bool IsDirection(hipMemcpyKind kind) {
  return (kind >= hipMemcpyHostToHost && kind <= hipMemcpyDefault) ||
         kind == hipMemcpyDeviceToDeviceNoCU;
}

// The driver's memory types of both ends. A direction that names the host is needed, because the
// driver cannot recognise pageable host memory by its address.
struct Ends {
  CUmemorytype source;
  CUmemorytype target;
};

Ends EndsOf(hipMemcpyKind kind) {
  switch (kind) {
    case hipMemcpyHostToHost:
      return {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST};
    case hipMemcpyHostToDevice:
      return {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE};
    case hipMemcpyDeviceToHost:
      return {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
    case hipMemcpyDefault:
      return {CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED};
    default:
      return {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE};
  }
}

// Sets both ends of a copy, in the fields that the type of memory needs.
template <class Copy>
void SetEnds(Copy* copy, hipMemcpyKind kind, void* target, const void* source) {
  const Ends ends = EndsOf(kind);
  copy->srcMemoryType = ends.source;
  copy->srcHost = source;
  copy->srcDevice = Address(source);
  copy->dstMemoryType = ends.target;
  copy->dstHost = target;
  copy->dstDevice = Address(target);
}

CUmemorytype TypeOf(hipMemoryType type) {
  switch (type) {
    case hipMemoryTypeHost:
      return CU_MEMORYTYPE_HOST;
    case hipMemoryTypeDevice:
      return CU_MEMORYTYPE_DEVICE;
    case hipMemoryTypeArray:
      return CU_MEMORYTYPE_ARRAY;
    default:
      return CU_MEMORYTYPE_UNIFIED;
  }
}

// Translates the fields that the copies of two and three dimensions have in common.
template <class Copy, class HipCopy>
void Translate(Copy* copy, const HipCopy& from) {
  copy->srcXInBytes = from.srcXInBytes;
  copy->srcY = from.srcY;
  copy->srcMemoryType = TypeOf(from.srcMemoryType);
  copy->srcHost = from.srcHost;
  copy->srcDevice = Address(from.srcDevice);
  copy->srcPitch = from.srcPitch;
  copy->dstXInBytes = from.dstXInBytes;
  copy->dstY = from.dstY;
  copy->dstMemoryType = TypeOf(from.dstMemoryType);
  copy->dstHost = from.dstHost;
  copy->dstDevice = Address(from.dstDevice);
  copy->dstPitch = from.dstPitch;
  copy->WidthInBytes = from.WidthInBytes;
  copy->Height = from.Height;
}

CUDA_MEMCPY2D Translated(const hip_Memcpy2D& from) {
  CUDA_MEMCPY2D copy{};
  Translate(&copy, from);
  return copy;
}

CUDA_MEMCPY3D Translated(const HIP_MEMCPY3D& from) {
  CUDA_MEMCPY3D copy{};
  Translate(&copy, from);
  copy.srcZ = from.srcZ;
  copy.srcLOD = from.srcLOD;
  copy.srcHeight = from.srcHeight;
  copy.dstZ = from.dstZ;
  copy.dstLOD = from.dstLOD;
  copy.dstHeight = from.dstHeight;
  copy.Depth = from.Depth;
  return copy;
}

CUDA_MEMCPY2D Rectangle(void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
                        size_t width, size_t height, hipMemcpyKind kind) {
  CUDA_MEMCPY2D copy{};
  SetEnds(&copy, kind, dst, src);
  copy.srcPitch = src_pitch;
  copy.dstPitch = dst_pitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

// Arrays are not implemented, so both ends must be pointers.
hipError_t Box(const hipMemcpy3DParms* from, CUDA_MEMCPY3D* copy) {
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDirection(from->kind)) return hipErrorInvalidMemcpyDirection;
  if (from->srcArray != nullptr || from->dstArray != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  *copy = {};
  SetEnds(copy, from->kind, from->dstPtr.ptr, from->srcPtr.ptr);
  copy->srcXInBytes = from->srcPos.x;
  copy->srcY = from->srcPos.y;
  copy->srcZ = from->srcPos.z;
  copy->srcPitch = from->srcPtr.pitch;
  copy->srcHeight = from->srcPtr.ysize;
  copy->dstXInBytes = from->dstPos.x;
  copy->dstY = from->dstPos.y;
  copy->dstZ = from->dstPos.z;
  copy->dstPitch = from->dstPtr.pitch;
  copy->dstHeight = from->dstPtr.ysize;
  copy->WidthInBytes = from->extent.width;
  copy->Height = from->extent.height;
  copy->Depth = from->extent.depth;
  return CUDA_SUCCESS;
}

unsigned char Byte(int value) { return static_cast<unsigned char>(value); }

// Fills all slices of a box.
hipError_t FillBox(hipPitchedPtr dst, int value, hipExtent extent, CUstream stream) {
  if (extent.width == 0 || extent.height == 0) return CUDA_SUCCESS;
  if (dst.ysize < extent.height) return CUDA_ERROR_INVALID_VALUE;
  for (size_t z = 0; z < extent.depth; ++z) {
    const CUdeviceptr slice = Address(dst.ptr) + z * dst.pitch * dst.ysize;
    CUresult r = softgpu::api::cuMemsetD2D8Async(slice, dst.pitch, Byte(value), extent.width,
                                                 extent.height, stream);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

}  // namespace

namespace own {

hipError_t hipMemcpy(void* dst, const void* src, size_t bytes, hipMemcpyKind kind) {
  if (!IsDirection(kind)) return hipErrorInvalidMemcpyDirection;
  switch (kind) {
    case hipMemcpyHostToDevice:
      return softgpu::api::cuMemcpyHtoD_v2(Address(dst), src, bytes);
    case hipMemcpyDeviceToHost:
      return softgpu::api::cuMemcpyDtoH_v2(dst, Address(src), bytes);
    default:
      return softgpu::api::cuMemcpy(Address(dst), Address(src), bytes);
  }
}

hipError_t hipMemcpyAsync(void* dst, const void* src, size_t bytes, hipMemcpyKind kind,
                          hipStream_t stream) {
  if (!IsDirection(kind)) return hipErrorInvalidMemcpyDirection;
  switch (kind) {
    case hipMemcpyHostToDevice:
      return softgpu::api::cuMemcpyHtoDAsync_v2(Address(dst), src, bytes, stream);
    case hipMemcpyDeviceToHost:
      return softgpu::api::cuMemcpyDtoHAsync_v2(dst, Address(src), bytes, stream);
    default:
      return softgpu::api::cuMemcpyAsync(Address(dst), Address(src), bytes, stream);
  }
}

hipError_t hipMemcpyWithStream(void* dst, const void* src, size_t bytes, hipMemcpyKind kind,
                               hipStream_t stream) {
  hipError_t r = hipMemcpyAsync(dst, src, bytes, kind, stream);
  return r != CUDA_SUCCESS ? r : softgpu::api::cuStreamSynchronize(stream);
}

hipError_t hipMemcpy2D(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                       size_t height, hipMemcpyKind kind) {
  if (!IsDirection(kind)) return hipErrorInvalidMemcpyDirection;
  const CUDA_MEMCPY2D copy = Rectangle(dst, dst_pitch, src, src_pitch, width, height, kind);
  return softgpu::api::cuMemcpy2D_v2(&copy);
}

hipError_t hipMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
                            size_t width, size_t height, hipMemcpyKind kind, hipStream_t stream) {
  if (!IsDirection(kind)) return hipErrorInvalidMemcpyDirection;
  const CUDA_MEMCPY2D copy = Rectangle(dst, dst_pitch, src, src_pitch, width, height, kind);
  return softgpu::api::cuMemcpy2DAsync_v2(&copy, stream);
}

hipError_t hipMemcpyParam2D(const hip_Memcpy2D* from) {
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY2D copy = Translated(*from);
  return softgpu::api::cuMemcpy2D_v2(&copy);
}

hipError_t hipMemcpyParam2DAsync(const hip_Memcpy2D* from, hipStream_t stream) {
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY2D copy = Translated(*from);
  return softgpu::api::cuMemcpy2DAsync_v2(&copy, stream);
}

hipError_t hipDrvMemcpy2DUnaligned(const hip_Memcpy2D* from) { return hipMemcpyParam2D(from); }

hipError_t hipMemcpy3D(const hipMemcpy3DParms* from) {
  CUDA_MEMCPY3D copy;
  if (hipError_t r = Box(from, &copy); r != CUDA_SUCCESS) return r;
  return softgpu::api::cuMemcpy3D_v2(&copy);
}

hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms* from, hipStream_t stream) {
  CUDA_MEMCPY3D copy;
  if (hipError_t r = Box(from, &copy); r != CUDA_SUCCESS) return r;
  return softgpu::api::cuMemcpy3DAsync_v2(&copy, stream);
}

hipError_t hipDrvMemcpy3D(const HIP_MEMCPY3D* from) {
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY3D copy = Translated(*from);
  return softgpu::api::cuMemcpy3D_v2(&copy);
}

hipError_t hipDrvMemcpy3DAsync(const HIP_MEMCPY3D* from, hipStream_t stream) {
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_MEMCPY3D copy = Translated(*from);
  return softgpu::api::cuMemcpy3DAsync_v2(&copy, stream);
}

// Ignores the devices, because every device can access all memory.
hipError_t hipMemcpyPeer(void* dst, int, const void* src, int, size_t bytes) {
  return softgpu::api::cuMemcpyPeer(Address(dst), nullptr, Address(src), nullptr, bytes);
}

hipError_t hipMemcpyPeerAsync(void* dst, int, const void* src, int, size_t bytes,
                              hipStream_t stream) {
  return softgpu::api::cuMemcpyPeerAsync(Address(dst), nullptr, Address(src), nullptr, bytes,
                                         stream);
}

hipError_t hipMemset(void* dst, int value, size_t bytes) {
  return softgpu::api::cuMemsetD8_v2(Address(dst), Byte(value), bytes);
}

hipError_t hipMemsetAsync(void* dst, int value, size_t bytes, hipStream_t stream) {
  return softgpu::api::cuMemsetD8Async(Address(dst), Byte(value), bytes, stream);
}

hipError_t hipMemset2D(void* dst, size_t pitch, int value, size_t width, size_t height) {
  return softgpu::api::cuMemsetD2D8_v2(Address(dst), pitch, Byte(value), width, height);
}

hipError_t hipMemset2DAsync(void* dst, size_t pitch, int value, size_t width, size_t height,
                            hipStream_t stream) {
  return softgpu::api::cuMemsetD2D8Async(Address(dst), pitch, Byte(value), width, height, stream);
}

hipError_t hipMemset3D(hipPitchedPtr dst, int value, hipExtent extent) {
  return FillBox(dst, value, extent, nullptr);
}

hipError_t hipMemset3DAsync(hipPitchedPtr dst, int value, hipExtent extent, hipStream_t stream) {
  return FillBox(dst, value, extent, stream);
}

}  // namespace own
}  // namespace softgpu::hip
