// Takes parts out of a sequence of units.
#pragma once

#include <cstdint>
#include <vector>

#include "store/manifest.h"

namespace stasis::store {

// Units of a sequence, by their numbers in it.
struct UnitSlice {
  uint64_t first = 0;
  uint64_t units = 0;
};

struct SlicedRuns {
  std::vector<std::vector<UnitRun>> slices;  // one for each slice
  std::vector<UnitRun> rest;                 // the other units, in order
};

// Divides a sequence. The slices must be sorted, must not overlap and must be within the sequence.
SlicedRuns SliceRuns(const std::vector<UnitRun>& runs, const std::vector<UnitSlice>& slices);

}  // namespace stasis::store
