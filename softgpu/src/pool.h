// Stream-ordered allocation: each allocation is device memory of its own. What is freed stays with
// its pool, for requests of the same size, until a wait finds the pool above its release threshold.
#pragma once

#include <vector>

#include "base.h"
#include "memory.h"

namespace softgpu {

struct Pool {
  int ordinal = 0;
  bool is_default = false;
  uint64_t max_bytes = 0;  // 0: unbounded
  uint64_t release_threshold = 0;
  uint64_t used = 0;
  uint64_t used_high = 0;
  uint64_t reserved = 0;  // with what is unused
  uint64_t reserved_high = 0;
  std::vector<Memory*> unused;
  int reuse[4] = {0, 1, 1, 1};  // the flags; all of it is reused as if they were set
  CUmemAccess_flags access[kMaxDevices] = {};
};

// Under driver().mutex: gives back what a pool has unused above `keep` bytes in all.
void TrimPool(Pool* pool, uint64_t keep);
// After a wait of the program: every pool, down to its threshold.
void TrimPools();
// The device's last context ends.
void EndPools(int ordinal);

}  // namespace softgpu
