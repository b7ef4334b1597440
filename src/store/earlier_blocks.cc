#include "store/earlier_blocks.h"

#include "image/block_reader.h"

namespace stasis::store {

using image::BlockReader;
using image::DeviceRange;
using image::Id128;
using image::Manifest;
using image::Pack;

Result<EarlierBlocks> EarlierBlocks::Look(const std::string& store, const Query& query) {
  EarlierBlocks earlier;
  STASIS_ASSIGN(earlier.images_, EarlierImages::Look(store, query));
  for (uint32_t i = 0; i < earlier.images_.size(); ++i) earlier.Take(i);
  return earlier;
}

// Its place among all packs; kNone when it is not there, or not ours.
uint32_t EarlierBlocks::TakePack(const EarlierImage& image, const Pack& pack) {
  if (pack.holds_pages) return kNone;
  const auto found = FindPackFile(image, pack);
  if (!found) return kNone;
  auto [at, is_new] = pack_index_.emplace(pack.id, static_cast<uint32_t>(packs_.size()));
  if (is_new) {
    packs_.push_back({pack, found->file, found->occupied_bytes});
    return at->second;
  }
  // A copy of an image has packs of the same id that are other files: its own matter.
  const EarlierPack& known = packs_[at->second];
  bool same = known.file == found->file && known.pack.index_checksum == pack.index_checksum;
  return same ? at->second : kNone;
}

void EarlierBlocks::Take(uint32_t index) {
  EarlierImage& image = images_[index];
  auto& checked = checked_.emplace_back();
  std::vector<uint32_t> places;  // of this image's packs among all
  for (const Pack& pack : image.manifest.packs) {
    places.push_back(TakePack(image, pack));
    if (places.back() != kNone) checked[places.back()] = pack.checked_unix_ns;
  }
  for (const DeviceRange& range : image.manifest.ranges) {
    for (size_t i = 0; i < range.blocks.size(); ++i) {
      if (range.blocks[i].IsZero() || places[range.packs[i]] == kNone) continue;
      blocks_.try_emplace(range.blocks[i],
                          Block{index, places[range.packs[i]],
                                static_cast<uint32_t>(BlockReader::BlockBytes(range, i))});
    }
  }
  image.manifest = Manifest();  // it may be long
}

const EarlierBlocks::Block* EarlierBlocks::Find(const Id128& name, uint64_t logical_bytes) const {
  auto at = blocks_.find(name);
  return at == blocks_.end() || at->second.logical_bytes != logical_bytes ? nullptr : &at->second;
}

}  // namespace stasis::store
