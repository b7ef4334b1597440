#include "checkpoint/image_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "store/unit_reader.h"

namespace stasis::checkpoint {
namespace {

static_assert(store::UnitJobs::kJobBytes <= dataplane::LoadSource::kItemBytes);

class ImageSource final : public dataplane::LoadSource {
 public:
  ImageSource(store::UnitReader units, store::UnitNames names,
              const std::vector<dataplane::Range>& ranges)
      : units_(std::move(units)), names_(std::move(names)) {
    uint64_t at = 0;
    for (const dataplane::Range& range : ranges) {
      device_offsets_.push_back(at);
      at += range.size_bytes;
    }
  }

  size_t items() const override { return units_.items(); }

  Status Read(size_t item, char* buffer, std::vector<dataplane::LoadPart>& parts) const override {
    std::vector<store::UnitJobs::Part> read;
    STASIS_TRY(units_.ReadItem(item, buffer, read));
    for (const auto& part : read) {
      parts.push_back({device_offsets_[part.to.output] + part.to.at, part.bytes, part.buffer_offset,
                       part.zero});
    }
    return {};
  }

  Status Check(std::vector<Id128> hashes) const override {
    // Zero blocks have no name.
    std::vector<Id128> names;
    for (const Id128& hash : hashes) {
      if (!hash.IsZero()) names.push_back(hash);
    }
    STASIS_TRY(names_.Encrypt(names));
    for (auto name = names.begin(); Id128 & hash : hashes) {
      if (!hash.IsZero()) hash = *name++;
    }
    return units_.CheckNames(hashes);
  }

 private:
  const store::UnitReader units_;
  const store::UnitNames names_;
  std::vector<uint64_t> device_offsets_;  // of each output of `units_`
};

}  // namespace

std::string WhyNotByHash(const store::Manifest& manifest, const Id128& key_id) {
  const auto& naming = manifest.unit_naming;
  if (!naming || naming->function != store::kUnitNameFunction || naming->key_id != key_id) {
    return "the hashes in the image use another key";
  }
  const bool in_blocks =
      std::all_of(manifest.ranges.begin(), manifest.ranges.end(),
                  [](const auto& range) { return range.block_bytes == kBlockBytes; });
  return in_blocks ? "" : "the image has blocks of another size";
}

Result<std::shared_ptr<const dataplane::LoadSource>> OpenSource(const store::ImageReader& image,
                                                                const store::UnitNames& names,
                                                                const gpu_state::GpuShard& shard) {
  store::UnitReader::Selection selection;
  selection.ranges = shard.places;
  selection.zeros = true;
  STASIS_ASSIGN(auto units, store::UnitReader::Open(image, std::move(selection)));
  return std::make_shared<const ImageSource>(std::move(units), names, shard.ranges);
}

}  // namespace stasis::checkpoint
