// Measures the read and write speed of a directory's file system.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace stasis::health {

struct DiskSpeed {
  uint64_t bytes = 0;            // written, and then read
  double write_bytes_per_s = 0;  // until the data is on disk (fdatasync)
  double read_bytes_per_s = 0;
  bool direct = false;  // bypassed the page cache; otherwise the speeds are mainly those of memory
};

// Writes up to `most_bytes` to an unnamed file, which vanishes with this process, syncs the file
// and reads it back. Stops writing after `span`, and stops reading after the same time. Uses at
// most an eighth of the free space, and returns kResourceExhausted if that is less than 16 MiB.
Result<DiskSpeed> MeasureDisk(const std::string& folder, uint64_t most_bytes,
                              std::chrono::milliseconds span);

}  // namespace stasis::health
