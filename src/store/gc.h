// Gives back what no image needs: blocks in packs that outlived the image they were written for,
// and what killed writers and deleters left. May be killed at any point, and run beside dumps,
// restores and deletes; docs/decisions/packs-are-shared-by-hard-links.md has the
// argument.
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
  uint64_t references = 0;    // to blocks and runs of pages, which the images' manifests have
  uint64_t freed_blocks = 0;  // holes now
  uint64_t freed_bytes = 0;   // on the disk
  uint64_t unused_bytes = 0;  // that no image needs and that could not be given back
  struct Skipped {
    std::string path;  // below the store
    std::string why;
    bool busy = false;  // another time it will do
  };
  std::vector<Skipped> skipped;  // packs that were left alone, whole
};

struct GcOptions {
  // Called with "sweep", "read the images", and before each pack "lock PATH", "free PATH". For
  // tests, which fail and die there.
  std::function<Status(std::string_view step)> before_step;
};

// kNotFound when there is no such folder. What could not be freed is no failure; it is in the
// report.
Result<GcReport> CollectGarbage(const std::string& store, const GcOptions& options = {});

}  // namespace stasis::store
