// The names of the units of an image's packs, as the repository records them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/id128.h"
#include "base/result.h"
#include "repository/image_places.h"
#include "repository/image_record.h"
#include "repository/repository.h"
#include "repository/unit_fetch.h"
#include "store/unit_names.h"

namespace stasis::repository {

// The names of the units of each pack of an image; empty for packs whose names are not known, or
// were made with another key than the local names.
using PackNames = std::vector<std::vector<Id128>>;

// Reads the names that were made with the key of `names`. If an index cannot be read, its packs get
// no names, and the error is added to `unread`. Keeps at most `max_names` names: the remaining
// packs get none, and `unread` gets a note. Fails only if the call is cancelled.
Result<PackNames> ReadPackNames(const Repository& repository, const ImageRecord& record,
                                const store::UnitNames& names, const objects::CallOptions& call,
                                std::vector<std::string>& unread,
                                uint64_t max_names = kMaxIndexNames);

// Returns kDataLoss if the unit has a known name and its bytes, `plain`, have another one. Safe to
// call from any thread.
Status CheckUnitName(const PackNames& known, const store::UnitNames& names,
                     const ImagePlaces& places, const StoredUnit& stored, std::string_view plain);

// Returns the error of a unit whose bytes have another name than the recorded one.
tl::unexpected<Error> WrongUnitName(const ImagePlaces& places, const StoredUnit& stored);

}  // namespace stasis::repository
