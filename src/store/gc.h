// Garbage collection of a store: frees units in packs that no image needs any more, and removes
// files that killed writers and deletions left behind. It may be killed at any point, and may run
// at the same time as dumps, restores and deletions.
// docs/decisions/packs-are-shared-by-hard-links.md explains why this is safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace stasis::store {

struct GcReport {
  std::vector<std::string> swept;  // hidden folders that were removed
  uint64_t images = 0;
  uint64_t packs = 0;         // different files
  uint64_t references = 0;    // runs of units in the images' manifests
  uint64_t freed_units = 0;   // blocks and pages that have become holes
  uint64_t freed_bytes = 0;   // on the disk
  uint64_t unused_bytes = 0;  // of units that no image needs, but that could not be freed
  struct Skipped {
    std::string path;  // below the store
    std::string why;
    bool busy = false;  // a later run may succeed
  };
  std::vector<Skipped> skipped;  // packs that were not freed, or only in part
};

struct GcOptions {
  // Called with "sweep", "read the images", and for each pack "lock PATH" and "free PATH", before
  // each of these steps. For tests, which return an error or kill the process there.
  std::function<Status(std::string_view step)> before_step;
};

// Returns kNotFound if the store does not exist. A pack that cannot be freed is not an error; the
// report lists it.
Result<GcReport> CollectGarbage(const std::string& store, const GcOptions& options = {});

}  // namespace stasis::store
