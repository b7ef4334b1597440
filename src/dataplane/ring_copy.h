// Copies parts of a ring to GPU memory in batches, so that the client can fill buffers again while
// the next batch is copied. Runs only in the mover's process.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "dataplane/gpu.h"
#include "dataplane/load_source.h"
#include "dataplane/mover_protocol.h"

namespace stasis::dataplane {

class RingCopier {
 public:
  explicit RingCopier(const Gpu& gpu) : gpu_(gpu) {}
  RingCopier(const RingCopier&) = delete;

  // Submits the copies of a batch to the memory at `base`, and waits until fewer than
  // wire::kBatchesInFlight batches are in flight.
  Status Copy(const char* ring, cu::CUdeviceptr base, const std::vector<LoadPart>& parts);
  // Returns when everything has arrived.
  Status Wait();

 private:
  Status Start();

  const Gpu& gpu_;
  // One stream, because copies of several would share the bandwidth and end together.
  cu::CUstream stream_ = nullptr;
  cu::CUevent events_[wire::kBatchesInFlight] = {};
  size_t submitted_ = 0;
};

}  // namespace stasis::dataplane
