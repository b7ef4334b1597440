#include "dataplane/ring_copy.h"

namespace stasis::dataplane {

using namespace stasis::cuda;  // NOLINT: the driver's own names

Status RingCopier::Start() {
  if (stream_ == nullptr) STASIS_GPU(gpu_, cuStreamCreate, (&stream_, CU_STREAM_NON_BLOCKING));
  for (CUevent& event : events_) {
    if (event != nullptr) continue;
    STASIS_GPU(gpu_, cuEventCreate, (&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
  }
  return {};
}

Status RingCopier::Copy(const char* ring, CUdeviceptr base, const std::vector<LoadPart>& parts) {
  STASIS_TRY(Start());
  const size_t now = submitted_ % wire::kBatchesInFlight;
  for (const LoadPart& part : parts) {
    const CUdeviceptr to = base + part.device_offset;
    if (part.zero) {
      STASIS_GPU(gpu_, cuMemsetD8Async, (to, 0, part.bytes, stream_));
    } else {
      STASIS_GPU(gpu_, cuMemcpyHtoDAsync_v2, (to, ring + part.buffer_offset, part.bytes, stream_));
    }
  }
  STASIS_GPU(gpu_, cuEventRecord, (events_[now], stream_));
  if (++submitted_ < wire::kBatchesInFlight) return {};
  STASIS_GPU(gpu_, cuEventSynchronize, (events_[submitted_ % wire::kBatchesInFlight]));
  return {};
}

Status RingCopier::Wait() {
  submitted_ = 0;
  if (stream_ != nullptr) STASIS_GPU(gpu_, cuStreamSynchronize, (stream_));
  return {};
}

}  // namespace stasis::dataplane
