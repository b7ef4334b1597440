#include "store/write_options.h"

namespace stasis::store {

WriteOptions ForPages(WriteOptions options) {
  options.packs = {1, 1};
  if (options.compression == Compression::kAuto) options.compression = Compression::kNone;
  return options;
}

void WrittenUnits::DescribeIn(Manifest& manifest) const {
  if (ranges.empty() && page_files.empty()) return;
  manifest.unit_naming = naming;
  const auto before = static_cast<uint32_t>(manifest.packs.size());
  manifest.packs.insert(manifest.packs.end(), packs.begin(), packs.end());
  auto add = [&](auto items, auto& to) {
    for (auto& item : items) {
      for (UnitRun& run : item.runs) run.pack += run.is_zero() ? 0 : before;
      to.push_back(std::move(item));
    }
  };
  add(ranges, manifest.ranges);
  add(page_files, manifest.page_files);
}

}  // namespace stasis::store
