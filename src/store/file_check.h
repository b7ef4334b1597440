// Checksums of all files of an image, chunk by chunk, on several threads. Each byte is read once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/result.h"
#include "store/manifest.h"

namespace stasis::store {

struct ChecksumJob {
  // In: path below the folder and size. Out: checksums, one a chunk.
  File file;
  // Out: why this file has no checksums.
  std::optional<Error> error;
};

enum class Writeback : uint8_t {
  kNone,
  kStart,  // asks the kernel to begin writing the data just read, so that a later fsync is short
};

// Fills in every job, or its error, and continues after a file's error. Fails only with kCancelled.
// A file shorter than its job says has the error kDataLoss.
Status ComputeChecksums(int folder_fd, uint32_t chunk_bytes, std::vector<ChecksumJob>& jobs,
                        Writeback writeback, const Progress& progress);

// Syncs every file and folder named, on several threads. Returns the first error. `progress` counts
// paths.
Status SyncAll(int folder_fd, const std::vector<std::string>& paths, const Progress& progress);

}  // namespace stasis::store
