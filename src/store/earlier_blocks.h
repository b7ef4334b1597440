// What the images of a store hold already: which block is in which pack. Looked up when a dump
// begins; a hint, as all of earlier_images.h.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "image/manifest.h"
#include "store/earlier_images.h"

namespace stasis::store {

class EarlierBlocks {
 public:
  using Query = EarlierQuery;
  // Packs that belong to another user than ours are passed over.
  static Result<EarlierBlocks> Look(const std::string& store, const Query& query);
  EarlierBlocks() = default;

  struct EarlierPack {
    image::Pack pack;  // as the newest image says that refers to it
    FileId file;
    uint64_t occupied_bytes = 0;  // on the disk
  };
  struct Block {
    uint32_t image;  // whose reference makes sure that the block is there
    uint32_t pack;
    uint32_t logical_bytes;
  };
  // nullptr: no image has it.
  const Block* Find(const image::Id128& name, uint64_t logical_bytes) const;
  const EarlierImage& image(size_t index) const { return images_[index]; }
  // When the image says that its blocks of a pack were checked last.
  int64_t CheckedUnixNs(size_t image, uint32_t pack) const { return checked_[image].at(pack); }
  const EarlierPack& pack(size_t index) const { return packs_[index]; }
  size_t blocks() const { return blocks_.size(); }
  bool IsStillThere(size_t image) const { return images_.IsStillThere(image); }

 private:
  static constexpr uint32_t kNone = ~0u;
  void Take(uint32_t image);
  uint32_t TakePack(const EarlierImage& image, const image::Pack& pack);

  EarlierImages images_;
  std::vector<std::unordered_map<uint32_t, int64_t>> checked_;  // one an image; by pack
  std::vector<EarlierPack> packs_;
  std::unordered_map<image::Id128, uint32_t, image::Id128Hash> pack_index_;
  std::unordered_map<image::Id128, Block, image::Id128Hash> blocks_;
};

}  // namespace stasis::store
