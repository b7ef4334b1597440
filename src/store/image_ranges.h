// The GPU memory in the packs of an image.
#pragma once

#include "store/image_reader.h"
#include "store/range_source.h"

namespace stasis::store {

class ImageRanges final : public RangeSource {
 public:
  // `image` must outlive this object.
  explicit ImageRanges(const ImageReader& image) : image_(image) {}

  // Knows no earlier image.
  Status Read(std::span<const size_t> ranges, std::span<const RangeOutput> outputs,
              const UnitJobs::Placed& placed, const std::function<bool()>& go_on) const override;

 private:
  const ImageReader& image_;
};

}  // namespace stasis::store
