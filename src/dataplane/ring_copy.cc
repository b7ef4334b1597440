#include "dataplane/ring_copy.h"

namespace stasis::dataplane {

using namespace stasis::cuda;  // NOLINT: the driver's own names

Status RingCopier::Start() {
  for (size_t i = 0; i < kBatches; ++i) {
    if (streams_[i] == nullptr) {
      STASIS_GPU(gpu_, cuStreamCreate, (&streams_[i], CU_STREAM_NON_BLOCKING));
    }
    if (events_[i] == nullptr) {
      STASIS_GPU(gpu_, cuEventCreate,
                 (&events_[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
    }
  }
  return {};
}

Status RingCopier::Copy(const char* ring, CUdeviceptr base, const std::vector<LoadPart>& parts) {
  STASIS_TRY(Start());
  const size_t now = submitted_ % kBatches;
  for (const LoadPart& part : parts) {
    const CUdeviceptr to = base + part.device_offset;
    if (part.zero) {
      STASIS_GPU(gpu_, cuMemsetD8Async, (to, 0, part.bytes, streams_[now]));
    } else {
      STASIS_GPU(gpu_, cuMemcpyHtoDAsync_v2,
                 (to, ring + part.buffer_offset, part.bytes, streams_[now]));
    }
  }
  STASIS_GPU(gpu_, cuEventRecord, (events_[now], streams_[now]));
  if (submitted_++ == 0) return {};
  STASIS_GPU(gpu_, cuEventSynchronize, (events_[(now + 1) % kBatches]));
  return {};
}

Status RingCopier::Wait() {
  submitted_ = 0;
  for (CUstream stream : streams_) {
    if (stream != nullptr) STASIS_GPU(gpu_, cuStreamSynchronize, (stream));
  }
  return {};
}

}  // namespace stasis::dataplane
