#include "store/earlier_units.h"

#include <algorithm>

#include "base/descriptor_table.h"
#include "store/beneath.h"

namespace stasis::store {

namespace {

constexpr size_t kMaxIndexes = 512;  // in memory

// Reads the index of an image's pack. Returns kDataLoss if it is not the index that the manifest
// records.
Result<PackIndex> ReadIndex(const EarlierImage& image, const Pack& pack) {
  STASIS_ASSIGN(OpenedFile opened, OpenRegular(image.folder.get(), pack.path()));
  STASIS_ASSIGN(PackIndex index, ReadPackIndex(opened.fd.get(), opened.size_bytes, pack.path()));
  if (index.id == pack.id && index.checksum == pack.index_checksum &&
      index.unit_bytes == pack.unit_bytes) {
    return index;
  }
  return DamagedPack(pack.path(), "it is not the recorded pack");
}

}  // namespace

Result<EarlierUnits> EarlierUnits::Look(const std::string& store, const EarlierQuery& query,
                                        uint32_t unit_bytes, uint64_t enough) {
  EarlierUnits earlier;
  (void)RaiseDescriptorLimit();
  STASIS_ASSIGN(earlier.images_, EarlierImages::Look(store, query));
  std::vector<std::vector<uint32_t>> places;  // for each image: the indexes in packs_ of its packs
  uint64_t room = enough;
  for (uint32_t i = 0; i < earlier.images_.size() && room > 0; ++i) {
    auto& of_image = places.emplace_back();
    for (const Pack& pack : earlier.images_[i].manifest.packs) {
      of_image.push_back(pack.unit_bytes == unit_bytes ? earlier.AddPack(i, pack, room) : kNone);
    }
  }
  size_t units = 0;
  std::vector<std::vector<bool>> added;
  for (const EarlierPack& pack : earlier.packs_) {
    units += pack.index->units.size();
    added.emplace_back(pack.index->units.size());
  }
  earlier.by_name_ = NameTable(units);
  for (uint32_t i = 0; i < places.size(); ++i) {
    const Manifest& manifest = earlier.images_[i].manifest;
    for (const auto& range : manifest.ranges) earlier.AddUnits(range.runs, i, places[i], added);
    for (const auto& file : manifest.page_files) earlier.AddUnits(file.runs, i, places[i], added);
  }
  for (uint32_t i = 0; i < earlier.images_.size(); ++i) {
    earlier.images_[i].manifest = Manifest();  // free its memory
  }
  return earlier;
}

// Returns the pack's index in packs_. Returns kNone if the pack is missing, belongs to another user
// or is damaged; adds a note about damage.
uint32_t EarlierUnits::AddPack(uint32_t image, const Pack& pack, uint64_t& room) {
  const auto found = FindPackFile(images_[image], pack);
  if (!found) return kNone;
  auto known = std::find_if(packs_.begin(), packs_.end(),
                            [&](const EarlierPack& one) { return one.pack.id == pack.id; });
  if (known == packs_.end()) {
    if (room == 0 || packs_.size() >= kMaxIndexes) return kNone;
    if (std::find(damaged_.begin(), damaged_.end(), found->file) != damaged_.end()) return kNone;
    auto index = ReadIndex(images_[image], pack);
    if (!index) {
      if (!IsDamage(index.error())) return kNone;
      damaged_.push_back(found->file);
      notes_.push_back(DamagedNote(images_[image], pack, index.error()));
      return kNone;
    }
    room -= std::min<uint64_t>(room, index->units.size());
    packs_.push_back({pack,
                      found->file,
                      found->occupied_bytes,
                      std::make_shared<const PackIndex>(std::move(*index)),
                      {}});
    known = packs_.end() - 1;
  }
  // A copy of an image has packs of the same id in other files. Such packs are not shared.
  if (known->file != found->file || known->pack.index_checksum != pack.index_checksum) {
    return kNone;
  }
  known->checked_unix_ns.emplace_back(image, pack.checked_unix_ns);
  return static_cast<uint32_t>(known - packs_.begin());
}

void EarlierUnits::AddUnits(const std::vector<UnitRun>& runs, uint32_t image,
                            const std::vector<uint32_t>& places,
                            std::vector<std::vector<bool>>& added) {
  auto name_of = [this](uint32_t unit) -> const Id128& { return NameOf(unit); };
  for (const UnitRun& run : runs) {
    const uint32_t pack = run.is_zero() ? kNone : places[run.pack];
    if (pack == kNone) continue;
    const auto& units = packs_[pack].index->units;
    if (uint64_t{run.first} + run.units > units.size()) continue;  // a damaged image
    for (uint32_t number = run.first; number < run.first + run.units; ++number) {
      if (added[pack][number]) continue;
      added[pack][number] = true;
      uint32_t& slot = by_name_.At(units[number].name, name_of);
      if (slot != NameTable::kNone) continue;
      slot = static_cast<uint32_t>(units_.size());
      units_.push_back({image, pack, number});
    }
  }
}

const EarlierUnits::Unit* EarlierUnits::Find(const Id128& name) const {
  const uint32_t unit =
      by_name_.Find(name, [this](uint32_t number) -> const Id128& { return NameOf(number); });
  return unit == NameTable::kNone ? nullptr : &units_[unit];
}

}  // namespace stasis::store
