// Where a restore reads the GPU memory of an image.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "base/result.h"
#include "store/unit_jobs.h"

namespace stasis::store {

// The destination of a range.
struct RangeOutput {
  char* data;
  // If set, `data` already contains a range of the earlier image that the source knows. The value
  // is the number of that range in the earlier image's manifest. Addresses do not identify a range,
  // because memory that is mapped nowhere has address 0.
  std::optional<size_t> earlier_range = {};
};

class RangeSource {
 public:
  virtual ~RangeSource() = default;
  // Fills outputs[i], which is as large as the manifest's range ranges[i], including zeros. Checks
  // every byte that it writes before it returns. Calls `placed` from several threads for each part
  // that has been written and checked. Begins with the first outputs. Calls `go_on` regularly from
  // the caller's thread. Returns kCancelled if `go_on` returns false, and the first error of
  // `placed`.
  virtual Status Read(std::span<const size_t> ranges, std::span<const RangeOutput> outputs,
                      const UnitJobs::Placed& placed, const std::function<bool()>& go_on) const = 0;
};

}  // namespace stasis::store
