// Frees what no image needs: units in packs that have outlived the image they were written for, and
// the remains of killed writers and deleters. May be killed at any point and run beside dumps,
// restores and deletes; docs/decisions/packs-are-shared-by-hard-links.md has the argument.
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
  uint64_t freed_units = 0;   // blocks and pages that are holes now
  uint64_t freed_bytes = 0;   // on the disk
  uint64_t unused_bytes = 0;  // needed by no image, but could not be freed
  struct Skipped {
    std::string path;  // below the store
    std::string why;
    bool busy = false;  // a later run may succeed
  };
  std::vector<Skipped> skipped;  // packs of which nothing was freed
};

struct GcOptions {
  // Called with "sweep", "read the images", and before each pack "lock PATH", "free PATH". For
  // tests, which fail and die there.
  std::function<Status(std::string_view step)> before_step;
};

// Returns kNotFound if there is no such folder. Packs that cannot be freed are no failure; they are
// in the report.
Result<GcReport> CollectGarbage(const std::string& store, const GcOptions& options = {});

}  // namespace stasis::store
