// The GPU memory in the packs of an image.
#pragma once

#include "store/image_reader.h"
#include "store/range_source.h"

namespace stasis::store {

class ImageRanges final : public RangeSource {
 public:
  // `image` must outlive this object.
  explicit ImageRanges(const ImageReader& image) : image_(image) {}

  // Reads everything: this source knows no earlier image (RangeOutput::earlier_range).
  Status Read(std::span<const size_t> ranges, std::span<const RangeOutput> outputs,
              const UnitJobs::Placed& placed, const std::function<bool()>& go_on) const override;

 private:
  const ImageReader& image_;
};

}  // namespace stasis::store
