// Fetches units from packs with few requests, and opens each as it arrives.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "objects/object_store.h"
#include "repository/image_places.h"
#include "repository/repository.h"

namespace stasis::repository {

// A unit of a pack of an image.
struct StoredUnit {
  uint32_t pack;  // for ImagePlaces
  uint32_t unit;

  auto operator<=>(const StoredUnit&) const = default;
};

// Units that one request fetches. There may be other units between them.
struct FetchRange {
  uint32_t pack = 0;
  uint64_t offset = 0;  // in the object
  uint64_t bytes = 0;
  uint64_t plain_bytes = 0;     // of the units
  std::vector<uint32_t> units;  // ascending
};

// Plans the requests. `units` must be sorted and have no unit twice.
std::vector<FetchRange> PlanFetches(const ImagePlaces& places,
                                    const std::vector<StoredUnit>& units);

// Receives the bytes of one unit, which are valid during the call only.
using UnitReceived = std::function<Status(uint32_t unit, std::string_view plain)>;
// Returns the address to which a unit is decrypted, or nullptr if a buffer is to be used. Not
// called for compressed units.
using UnitPlaceOf = std::function<char*(uint32_t unit)>;

// Fetches the units of a range and calls `received` for each of them once, in order, from one
// thread at a time. A transfer that breaks off begins again at the start of a unit. Returns
// kDataLoss if the pack is missing or too short or a unit is damaged, and the first error of
// `received`. Safe to call from any thread.
Status FetchUnits(const Repository& repository, const ImagePlaces& places, const FetchRange& range,
                  const UnitReceived& received, const objects::CallOptions& call,
                  const UnitPlaceOf& place_of = nullptr);

}  // namespace stasis::repository
