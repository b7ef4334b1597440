// Stream-ordered allocation. Each allocation is separate device memory. Freed memory stays in its
// pool for requests of the same size, until a synchronisation finds the pool above its release
// threshold.
#pragma once

#include <vector>

#include "base.h"
#include "memory.h"

namespace softgpu {

struct Pool {
  int ordinal = 0;
  bool is_default = false;
  uint64_t max_bytes = 0;  // 0: unlimited
  uint64_t release_threshold = 0;
  uint64_t used = 0;
  uint64_t used_high = 0;
  uint64_t reserved = 0;  // includes unused memory
  uint64_t reserved_high = 0;
  std::vector<Memory*> unused;
  int reuse[4] = {0, 1, 1, 1};  // reuse flags, which have no effect: memory is always reused
  CUmemAccess_flags access[kMaxDevices] = {};
};

// Frees unused memory of a pool above `keep` bytes in total. Requires driver().mutex.
void TrimPool(Pool* pool, uint64_t keep);
// Called after a synchronisation of the program: trims every pool to its threshold.
void TrimPools();
// Called when the last context on the device has ended: frees the memory of the device's pools.
void EndPools(int ordinal);

}  // namespace softgpu
