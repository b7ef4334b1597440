// Streams and events, where HIP differs from the driver.

#include "hip/face.h"

namespace softgpu::hip {

namespace api {

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return softgpu::api::cuEventCreate(event, flags & ~kEventOwnFlags);
}

}  // namespace api

namespace own {

hipError_t hipStreamCreate(hipStream_t* stream) {
  return softgpu::api::cuStreamCreate(stream, CU_STREAM_DEFAULT);
}

// Ignores the mask, which selects compute units of a real GPU.
hipError_t hipExtStreamCreateWithCUMask(hipStream_t* stream, uint32_t mask_size,
                                        const uint32_t* mask) {
  if (mask_size == 0 || mask == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return softgpu::api::cuStreamCreate(stream, CU_STREAM_DEFAULT);
}

hipError_t hipEventCreate(hipEvent_t* event) {
  return softgpu::api::cuEventCreate(event, CU_EVENT_DEFAULT);
}

// Waiting for some bits of a word is not implemented.
hipError_t hipStreamWaitValue32(hipStream_t stream, void* ptr, uint32_t value, unsigned int flags,
                                uint32_t mask) {
  if (mask != UINT32_MAX) return CUDA_ERROR_NOT_SUPPORTED;
  return softgpu::api::cuStreamWaitValue32_v2(stream, Address(ptr), value, flags);
}

hipError_t hipStreamWaitValue64(hipStream_t stream, void* ptr, uint64_t value, unsigned int flags,
                                uint64_t mask) {
  if (mask != UINT64_MAX) return CUDA_ERROR_NOT_SUPPORTED;
  return softgpu::api::cuStreamWaitValue64_v2(stream, Address(ptr), value, flags);
}

hipError_t hipStreamGetCaptureInfo(hipStream_t stream, CUstreamCaptureStatus* status,
                                   unsigned long long* id) {
  cuuint64_t found = 0;
  CUresult r =
      softgpu::api::cuStreamGetCaptureInfo_v2(stream, status, &found, nullptr, nullptr, nullptr);
  if (r == CUDA_SUCCESS && id != nullptr) *id = found;
  return r;
}

}  // namespace own
}  // namespace softgpu::hip
