// Which pages of CPU memory the images of a store hold already, and where: the indexes of their
// packs, as far as the images refer to them. A hint, as all of earlier_images.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/page_pack.h"
#include "store/earlier_images.h"
#include "store/name_table.h"

namespace stasis::store {

class EarlierPages {
 public:
  // Stops looking when the packs found have `enough_pages`: what is newer is looked at first.
  static Result<EarlierPages> Look(const std::string& store, const EarlierQuery& query,
                                   uint64_t enough_pages);
  EarlierPages() = default;

  struct Page {
    uint32_t image;  // whose reference makes sure that the page is there
    uint32_t pack;
    uint32_t number;  // in the pack
  };
  struct EarlierPack {
    image::Pack pack;  // as the newest image says that refers to it
    FileId file;
    uint64_t occupied_bytes;  // on the disk
    image::PagePackReader reader;
    std::vector<std::pair<uint32_t, int64_t>> checked_unix_ns;  // by image that refers to it
  };
  // nullptr: no image has it.
  const Page* Find(const image::Id128& name) const;
  const EarlierPack& pack(size_t index) const { return packs_[index]; }
  size_t packs() const { return packs_.size(); }
  const EarlierImage& image(size_t index) const { return images_[index]; }
  bool IsStillThere(size_t image) const { return images_.IsStillThere(image); }

 private:
  static constexpr uint32_t kNone = ~0u;
  uint32_t TakePack(uint32_t image, const image::Pack& pack, uint64_t& room);
  void TakePages(uint32_t image, const std::vector<uint32_t>& places,
                 std::vector<std::vector<bool>>& taken);
  const image::Id128& NameOf(uint32_t page) const {
    return packs_[pages_[page].pack].reader.pages()[pages_[page].number].name;
  }

  EarlierImages images_;
  std::vector<EarlierPack> packs_;
  std::vector<Page> pages_;
  NameTable by_name_;
};

}  // namespace stasis::store
