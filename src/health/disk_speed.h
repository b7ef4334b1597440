// How fast a folder's file system takes and gives back bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace stasis::health {

struct DiskSpeed {
  uint64_t bytes = 0;            // written, and read again
  double write_bytes_per_s = 0;  // until the disk has them (fdatasync)
  double read_bytes_per_s = 0;
  bool direct = false;  // past the page cache; else both are of memory more than of the disk
};

// Writes up to `most_bytes` to a file without a name, which is gone with this process whatever ends
// it, syncs it, and reads it again. Less where `span` is over before; an eighth of what is free at
// most. kResourceExhausted when not even 16 MiB are.
Result<DiskSpeed> MeasureDisk(const std::string& folder, uint64_t most_bytes,
                              std::chrono::milliseconds span);

}  // namespace stasis::health
