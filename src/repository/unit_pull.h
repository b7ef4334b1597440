// Brings units of one kind (blocks of GPU memory, or pages) from a repository into a new local
// image. Units that earlier local images have are linked instead of fetched.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "repository/image_places.h"
#include "repository/image_record.h"
#include "repository/pack_names.h"
#include "repository/repository.h"
#include "repository/unit_fetch.h"
#include "store/image_writer.h"
#include "store/unit_names.h"
#include "store/unit_writer.h"
#include "store/write_options.h"

namespace stasis::repository {

struct PullContext {
  const Repository& repository;
  const ImageRecord& record;
  const ImagePlaces& places;
  const PackNames& pack_names;
  const store::UnitNames& names;  // of the local store
  const objects::CallOptions& call;
  std::atomic<uint64_t>& done;     // plain bytes fetched or linked
  std::atomic<uint64_t>& fetched;  // of those, the bytes that were fetched
  uint64_t total = 0;
  Progress progress;
};

// Returns the ranges or page files of the image with their runs in the local image's packs, and
// these packs. Checks each unit, including its name if the name is known. `options` must outlive
// the call.
Result<store::WrittenUnits> PullUnits(const PullContext& context, store::ImageWriter& writer,
                                      const store::WriteOptions& options, Sequence::Kind kind);

}  // namespace stasis::repository
