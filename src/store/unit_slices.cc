#include "store/unit_slices.h"

#include <algorithm>
#include <cassert>

namespace stasis::store {
namespace {

// Appends units to runs, and extends the last run if they follow it.
void Append(std::vector<UnitRun>& runs, const UnitRun& more) {
  if (!runs.empty() && runs.back().pack == more.pack) {
    UnitRun& last = runs.back();
    const bool follows = more.is_zero() || last.first + last.units == more.first;
    if (follows && more.units <= UINT32_MAX - last.units) {
      last.units += more.units;
      return;
    }
  }
  runs.push_back(more);
}

}  // namespace

SlicedRuns SliceRuns(const std::vector<UnitRun>& runs, const std::vector<UnitSlice>& slices) {
  SlicedRuns sliced;
  sliced.slices.resize(slices.size());
  uint64_t at = 0;  // number of the next unit
  size_t slice = 0;
  for (const UnitRun& run : runs) {
    for (uint32_t done = 0; done < run.units;) {
      while (slice < slices.size() && slices[slice].first + slices[slice].units <= at) ++slice;
      const bool more = slice < slices.size();
      assert(slice == 0 || !more || slices[slice].first >= slices[slice - 1].first);
      const bool inside = more && slices[slice].first <= at;
      uint64_t some = run.units - done;
      if (inside) some = std::min(some, slices[slice].first + slices[slice].units - at);
      if (more && !inside) some = std::min(some, slices[slice].first - at);
      const auto units = static_cast<uint32_t>(some);
      Append(inside ? sliced.slices[slice] : sliced.rest,
             {run.pack, run.is_zero() ? 0 : run.first + done, units});
      done += units;
      at += units;
    }
  }
  return sliced;
}

}  // namespace stasis::store
