// Builds one pack of a repository from units of a local image and uploads it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/id128.h"
#include "base/result.h"
#include "objects/object_store.h"
#include "repository/image_units.h"
#include "repository/pack_table.h"
#include "repository/push_plan.h"
#include "repository/repository.h"
#include "store/codec.h"
#include "store/unit_names.h"

namespace stasis::repository {

struct PackSource {
  const ImageUnits& units;
  const store::UnitNames& names;
  const std::vector<Id128>& expected;        // the name of each item
  store::Codec codec = store::Codec::kNone;  // for units that shrink by at least a sixteenth
};

// Reads the units of `pack`, checks them and their names, seals them, and stores the object with
// one request. Returns the offsets and lengths of the units in the object. Uses kMaxPackBytes of
// host memory for each calling thread. Safe to call from any thread.
Result<PackTable> UploadPack(const Repository& repository, const PackSource& source,
                             const NewPack& pack, const objects::CallOptions& call);

}  // namespace stasis::repository
