// Finds units that earlier images of a store contain already: reads the indexes of their packs and
// keeps the units to which an image refers. All results are hints, as in earlier_images.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/earlier_images.h"
#include "store/name_table.h"
#include "store/pack_index.h"

namespace stasis::store {

class EarlierUnits {
 public:
  // Reads the indexes of packs of this unit size, in the order of EarlierImages, until they list
  // `enough` units. The packs are not kept open, because there may be more of them than a process
  // can open.
  static Result<EarlierUnits> Look(const std::string& store, const EarlierQuery& query,
                                   uint32_t unit_bytes, uint64_t enough);
  EarlierUnits() = default;

  struct Unit {
    uint32_t image;  // refers to the unit, so gc keeps it
    uint32_t pack;
    uint32_t number;  // in the pack
  };
  struct EarlierPack {
    Pack pack;  // as recorded by the newest image that refers to it
    FileId file;
    uint64_t occupied_bytes;  // on the disk
    std::shared_ptr<const PackIndex> index;
    std::vector<std::pair<uint32_t, int64_t>> checked_unix_ns;  // by image that refers to the pack
  };
  // Returns nullptr if no image has the unit.
  const Unit* Find(const Id128& name) const;
  const EarlierPack& pack(size_t index) const { return packs_[index]; }
  size_t packs() const { return packs_.size(); }
  const EarlierImage& image(size_t index) const { return images_[index]; }
  bool IsStillThere(size_t image) const { return images_.IsStillThere(image); }
  // Notes for the user about packs that are not used because their index is damaged.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  static constexpr uint32_t kNone = ~0u;
  uint32_t AddPack(uint32_t image, const Pack& pack, uint64_t& room);
  void AddUnits(const std::vector<UnitRun>& runs, uint32_t image,
                const std::vector<uint32_t>& places, std::vector<std::vector<bool>>& added);
  const Id128& NameOf(uint32_t unit) const {
    return packs_[units_[unit].pack].index->units[units_[unit].number].name;
  }

  EarlierImages images_;
  std::vector<FileId> damaged_;  // packs
  std::vector<std::string> notes_;
  std::vector<EarlierPack> packs_;
  std::vector<Unit> units_;
  NameTable by_name_;
};

}  // namespace stasis::store
