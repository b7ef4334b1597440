#include "image/block_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace stasis::image {

Result<BlockReader> BlockReader::Open(const ImageReader& image, std::vector<Finding>* findings) {
  BlockReader blocks;
  auto add = [&](std::string path, Result<PackReader> reader) -> Status {
    blocks.packs_.push_back({std::move(path), std::nullopt});
    OpenedPack& pack = blocks.packs_.back();
    if (reader) {
      pack.reader = std::move(*reader);
    } else if (findings == nullptr) {
      return Fail(std::move(reader).error());
    } else {
      bool missing = reader.error().code == Code::kNotFound;
      findings->push_back(
          {pack.path, missing ? "is missing" : "cannot be read: " + reader.error().ToString()});
    }
    return {};
  };
  const Manifest& manifest = image.manifest();
  for (const Pack& pack : manifest.packs) {
    if (pack.holds_pages) {  // page_reader.h; here it only keeps its place
      blocks.packs_.push_back({pack.path(), std::nullopt});
    } else {
      STASIS_TRY(add(pack.path(), image.OpenPack(pack)));
    }
  }
  if (manifest.format > 1) return blocks;
  for (const File& file : manifest.files) {
    if (!file.path.starts_with("gpu/")) continue;
    auto opened = image.OpenFile(file.path);
    if (!opened && findings != nullptr) continue;  // a file like any other: found already
    if (!opened) return Fail(std::move(opened).error());
    STASIS_TRY(add(file.path, PackReader::Open(std::move(*opened), file.path)));
  }
  return blocks;
}

uint64_t BlockReader::BlockBytes(const DeviceRange& range, size_t index) {
  return std::min<uint64_t>(range.block_bytes,
                            range.size_bytes - index * uint64_t{range.block_bytes});
}

Result<BlockReader::Place> BlockReader::Find(const DeviceRange& range, size_t index) const {
  // In format 1 any pack may have it; else it is in this one, and a block of the same name in
  // another may be a hole by now.
  assert(index < range.blocks.size());
  assert(range.packs.empty() || range.packs.size() == range.blocks.size());
  bool anywhere = range.packs.empty();
  Place place{anywhere ? 0 : range.packs[index], nullptr};
  for (; place.pack < packs_.size(); ++place.pack) {
    const auto& reader = packs_[place.pack].reader;
    if (reader) place.entry = reader->Find(range.blocks[index]);
    if (place.entry != nullptr || !anywhere) break;
  }
  if (place.entry != nullptr && place.entry->logical_bytes == BlockBytes(range, index))
    return place;
  return Fail(Code::kDataLoss, Domain::kImage, 0,
              fmt::format("has {} for device address {:#x}",
                          place.entry == nullptr ? "no block" : "a block of another length",
                          range.address + index * uint64_t{range.block_bytes}),
              "Take another copy of the image, or an older checkpoint.");
}

Status BlockReader::Read(const DeviceRange& range, size_t index, void* out) const {
  assert(index < range.blocks.size());
  if (range.blocks[index].IsZero()) {
    std::memset(out, 0, BlockBytes(range, index));
    return {};
  }
  auto place = Find(range, index);
  if (!place) {
    place.error().message = "the image " + place.error().message;
    return Fail(std::move(place).error());
  }
  assert(place->pack < packs_.size() && packs_[place->pack].reader);
  return packs_[place->pack].reader->Read(*place->entry, out);
}

}  // namespace stasis::image
