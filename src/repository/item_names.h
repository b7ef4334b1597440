// The names of a local image's units, by which a push finds units that a repository already has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/id128.h"
#include "base/parallel.h"
#include "base/result.h"
#include "repository/image_units.h"
#include "store/image_reader.h"
#include "store/unit_names.h"

namespace stasis::repository {

// Returns the name of each item. A part of a file that is all zero has the name zero. Names that
// the packs' indexes record are used if they have the right key and `trusts_index` is set; all
// others are computed from the data. Fails with kCancelled if `progress` returns false.
Result<std::vector<Id128>> NameItems(const ImageUnits& units, const store::ImageReader& image,
                                     const store::UnitNames& names, bool trusts_index,
                                     const Progress& progress);

// Returns kDataLoss unless the data of each target has the expected name. `buffer` holds the data
// of `targets` (ImageUnits::Read).
Status CheckNames(const ImageUnits& units, const store::UnitNames& names,
                  std::span<const ImageUnits::Target> targets, const char* buffer,
                  const std::vector<Id128>& expected);

}  // namespace stasis::repository
