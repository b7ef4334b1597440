// Checksums of all the files of an image, chunk by chunk, by several threads: each byte is read
// once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/manifest.h"
#include "image/parallel.h"

namespace stasis::image {

struct ChecksumJob {
  // In: path below the folder and size. Out: checksums, one a chunk.
  File file;
  // Out: why this file's checksums are not there.
  std::optional<Error> error;
};

enum class Writeback : uint8_t {
  kNone,
  kStart,  // asks the kernel to begin writing what was just read, so that a later fsync waits less
};

// Fills in every job, or its error; goes on after a file's error. Fails as a whole only with
// kCancelled. A file that is shorter than its job says is kDataLoss.
Status ComputeChecksums(int folder_fd, uint32_t chunk_bytes, std::vector<ChecksumJob>& jobs,
                        Writeback writeback, const Progress& progress);

// fsync of every file and folder named, by several threads; the first error. `progress` counts
// paths.
Status SyncAll(int folder_fd, const std::vector<std::string>& paths, const Progress& progress);

}  // namespace stasis::image
