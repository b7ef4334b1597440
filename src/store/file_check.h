// Computes the checksums of files of an image, chunk by chunk, on several threads.
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
  // Input: path below the folder and size. Output: checksums, one for each chunk.
  File file;
  // Output: set if the checksums could not be computed.
  std::optional<Error> error;
};

enum class Writeback : uint8_t {
  kNone,
  kStart,  // asks the kernel to begin writing the data just read, so that a later fsync is short
};

// Computes the checksums of each work item in `jobs`, or sets its `error` and continues with the
// next item. Returns no error except kCancelled. If a file is shorter than `file.size_bytes`, the
// item's error is kDataLoss.
Status ComputeChecksums(int folder_fd, uint32_t chunk_bytes, std::vector<ChecksumJob>& jobs,
                        Writeback writeback, const Progress& progress);

// Syncs files and folders on several threads. Returns the first error. `progress` counts paths.
Status SyncAll(int folder_fd, const std::vector<std::string>& paths, const Progress& progress);

}  // namespace stasis::store
