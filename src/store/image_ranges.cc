#include "store/image_ranges.h"

#include <utility>
#include <vector>

#include "store/unit_reader.h"

namespace stasis::store {

Status ImageRanges::Read(std::span<const size_t> ranges, std::span<const RangeOutput> outputs,
                         const UnitJobs::Placed& placed, const std::function<bool()>& go_on) const {
  UnitReader::Selection selection;
  selection.ranges.assign(ranges.begin(), ranges.end());
  selection.zeros = true;
  std::vector<char*> places;
  for (const RangeOutput& output : outputs) places.push_back(output.data);
  STASIS_ASSIGN(const auto units, UnitReader::Open(image_, std::move(selection)));
  return units.Read(places, placed, [&](uint64_t, uint64_t) { return go_on(); });
}

}  // namespace stasis::store
