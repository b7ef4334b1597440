// The units that the images of a store contain already, and where: the indexes of their packs, as
// far as the images refer to them. This is a hint, like everything in earlier_images.h.
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
  // Looks at packs of this unit size, and stops when those found have `enough` units. Newer images
  // are looked at first. The packs are not kept open: there may be more than a process may open.
  static Result<EarlierUnits> Look(const std::string& store, const EarlierQuery& query,
                                   uint32_t unit_bytes, uint64_t enough);
  EarlierUnits() = default;

  struct Unit {
    uint32_t image;  // whose reference guarantees that the unit is there
    uint32_t pack;
    uint32_t number;  // in the pack
  };
  struct EarlierPack {
    Pack pack;  // as recorded by the newest image that refers to it
    FileId file;
    uint64_t occupied_bytes;  // on the disk
    std::shared_ptr<const PackIndex> index;
    std::vector<std::pair<uint32_t, int64_t>> checked_unix_ns;  // by image that refers to it
  };
  // Returns nullptr if no image has the unit.
  const Unit* Find(const Id128& name) const;
  const EarlierPack& pack(size_t index) const { return packs_[index]; }
  size_t packs() const { return packs_.size(); }
  const EarlierImage& image(size_t index) const { return images_[index]; }
  bool IsStillThere(size_t image) const { return images_.IsStillThere(image); }
  // What the user should know about packs whose index is damaged, which are not used.
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
