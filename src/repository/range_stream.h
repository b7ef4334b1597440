// Reads the GPU memory of an image from a repository directly into the destination buffers.
#pragma once

#include <memory>
#include <string>

#include "repository/image_places.h"
#include "repository/image_record.h"
#include "repository/repository.h"
#include "store/range_source.h"

namespace stasis::repository {

class RangeStream final : public store::RangeSource {
 public:
  // Reads the image's record and the places of its units. `repository` must outlive this object.
  static Result<std::unique_ptr<RangeStream>> Open(const Repository& repository,
                                                   const std::string& name,
                                                   const objects::CallOptions& call);

  // Checks each unit by its tag, which covers the unit's position in the pack. The record, which is
  // sealed too, gives the unit's position in the image. If an output already holds a range of the
  // earlier image (store::RangeOutput), units that are the same at the same position of both ranges
  // are not read.
  Status Read(std::span<const size_t> ranges, std::span<const store::RangeOutput> outputs,
              const store::UnitJobs::Placed& placed,
              const std::function<bool()>& go_on) const override;

  // `earlier` must be an image of the same repository.
  void SetEarlier(std::shared_ptr<const ImageRecord> earlier) { earlier_ = std::move(earlier); }
  const std::shared_ptr<const ImageRecord>& record() const { return record_; }

 private:
  RangeStream(const Repository& repository, std::shared_ptr<const ImageRecord> record,
              ImagePlaces places)
      : repository_(repository), record_(std::move(record)), places_(std::move(places)) {}

  const Repository& repository_;
  const std::shared_ptr<const ImageRecord> record_;
  const ImagePlaces places_;
  std::shared_ptr<const ImageRecord> earlier_;
};

}  // namespace stasis::repository
