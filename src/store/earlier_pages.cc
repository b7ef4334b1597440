#include "store/earlier_pages.h"

#include <algorithm>

#include "image/beneath.h"

namespace stasis::store {

using image::Id128;
using image::Manifest;
using image::OpenRegular;
using image::Pack;
using image::PageFile;
using image::PagePackReader;
using image::PageRun;

namespace {

constexpr size_t kMaxPacks = 512;  // each is held open

}  // namespace

Result<EarlierPages> EarlierPages::Look(const std::string& store, const EarlierQuery& query,
                                        uint64_t enough_pages) {
  EarlierPages earlier;
  STASIS_ASSIGN(earlier.images_, EarlierImages::Look(store, query));
  std::vector<std::vector<uint32_t>> places;  // of each image's packs among all
  uint64_t room = enough_pages;
  for (uint32_t i = 0; i < earlier.images_.size() && room > 0; ++i) {
    auto& of_image = places.emplace_back();
    for (const Pack& pack : earlier.images_[i].manifest.packs) {
      of_image.push_back(pack.holds_pages ? earlier.TakePack(i, pack, room) : kNone);
    }
  }
  size_t pages = 0;
  std::vector<std::vector<bool>> taken;
  for (const EarlierPack& pack : earlier.packs_) {
    pages += pack.reader.pages().size();
    taken.emplace_back(pack.reader.pages().size());
  }
  earlier.by_name_ = NameTable(pages);
  for (uint32_t i = 0; i < places.size(); ++i) earlier.TakePages(i, places[i], taken);
  for (uint32_t i = 0; i < earlier.images_.size(); ++i) {
    earlier.images_[i].manifest = Manifest();  // it may be long
  }
  return earlier;
}

// Its place among all packs; kNone when it is not there, not ours, or damaged.
uint32_t EarlierPages::TakePack(uint32_t image, const Pack& pack, uint64_t& room) {
  const auto found = FindPackFile(images_[image], pack);
  if (!found) return kNone;
  auto known = std::find_if(packs_.begin(), packs_.end(),
                            [&](const EarlierPack& one) { return one.pack.id == pack.id; });
  if (known == packs_.end()) {
    if (room == 0 || packs_.size() >= kMaxPacks) return kNone;
    auto opened = OpenRegular(images_[image].folder.get(), pack.path());
    if (!opened) return kNone;
    auto reader = PagePackReader::Open(std::move(*opened), pack.path());
    // Who verifies that image will be told.
    if (!reader || reader->id() != pack.id || reader->index_checksum() != pack.index_checksum) {
      return kNone;
    }
    room -= std::min<uint64_t>(room, reader->pages().size());
    packs_.push_back({pack, found->file, found->occupied_bytes, std::move(*reader), {}});
    known = packs_.end() - 1;
  }
  // A copy of an image has packs of the same id that are other files: its own matter.
  if (!(known->file == found->file) || known->pack.index_checksum != pack.index_checksum) {
    return kNone;
  }
  known->checked_unix_ns.emplace_back(image, pack.checked_unix_ns);
  return static_cast<uint32_t>(known - packs_.begin());
}

void EarlierPages::TakePages(uint32_t image, const std::vector<uint32_t>& places,
                             std::vector<std::vector<bool>>& taken) {
  auto name_of = [this](uint32_t page) -> const Id128& { return NameOf(page); };
  for (const PageFile& file : images_[image].manifest.page_files) {
    for (const PageRun& run : file.runs) {
      const uint32_t pack = run.is_zero() ? kNone : places[run.pack];
      if (pack == kNone) continue;
      const auto& names = packs_[pack].reader.pages();
      if (uint64_t{run.first} + run.pages > names.size()) continue;  // a damaged image
      for (uint32_t number = run.first; number < run.first + run.pages; ++number) {
        if (taken[pack][number]) continue;
        taken[pack][number] = true;
        uint32_t& slot = by_name_.At(names[number].name, name_of);
        if (slot != NameTable::kNone) continue;
        slot = static_cast<uint32_t>(pages_.size());
        pages_.push_back({image, pack, number});
      }
    }
  }
}

const EarlierPages::Page* EarlierPages::Find(const Id128& name) const {
  const uint32_t page =
      by_name_.Find(name, [this](uint32_t p) -> const Id128& { return NameOf(p); });
  return page == NameTable::kNone ? nullptr : &pages_[page];
}

}  // namespace stasis::store
