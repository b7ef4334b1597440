// Reads the GPU memory of an image from a repository straight to its place.
#pragma once

#include "repository/image_places.h"
#include "repository/image_record.h"
#include "repository/repository.h"
#include "store/range_source.h"

namespace stasis::repository {

class RangeStream final : public store::RangeSource {
 public:
  // The arguments must outlive this object.
  RangeStream(const Repository& repository, const ImageRecord& record, const ImagePlaces& places)
      : repository_(repository), record_(record), places_(places) {}

  // Each unit is checked by its tag, which binds it to its place in the pack; the record, which is
  // sealed too, says where in the image it belongs.
  Status Read(std::span<const size_t> ranges, std::span<char* const> outputs,
              const store::UnitJobs::Placed& placed,
              const std::function<bool()>& go_on) const override;

 private:
  const Repository& repository_;
  const ImageRecord& record_;
  const ImagePlaces& places_;
};

}  // namespace stasis::repository
