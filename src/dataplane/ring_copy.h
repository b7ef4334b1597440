// Copies parts of a ring to GPU memory in batches, so that the client can fill buffers again while
// the next batch is copied. Runs only in the mover's process.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "dataplane/gpu.h"
#include "dataplane/load_source.h"

namespace stasis::dataplane {

class RingCopier {
 public:
  explicit RingCopier(const Gpu& gpu) : gpu_(gpu) {}
  RingCopier(const RingCopier&) = delete;

  // Submits the copies of a batch to the memory at `base`, and returns when all earlier batches
  // have arrived.
  Status Copy(const char* ring, cu::CUdeviceptr base, const std::vector<LoadPart>& parts);
  // Returns when everything has arrived.
  Status Wait();

 private:
  static constexpr size_t kBatches = 2;  // in flight

  Status Start();

  const Gpu& gpu_;
  cu::CUstream streams_[kBatches] = {};
  cu::CUevent events_[kBatches] = {};
  size_t submitted_ = 0;
};

}  // namespace stasis::dataplane
