// Decides where each unit of an image is, or will be, in a repository.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/id128.h"
#include "repository/image_record.h"
#include "repository/image_units.h"
#include "repository/known_units.h"

namespace stasis::repository {

// A pack to be uploaded.
struct NewPack {
  PackId id;
  std::vector<uint32_t> items;  // of the image, in the order of the pack
};

class PushPlan {
 public:
  // Uses units of `known` if their packs are worth keeping (KnownUnits::IsWorthKeeping). `names`
  // has the name of each item, zero for parts that are all zero. The arguments must outlive the
  // object.
  PushPlan(const ImageUnits& units, const std::vector<Id128>& names, KnownUnits& known);

  // Assigns every unit that has no place to a new pack. Returns these packs, which must be
  // uploaded. They belong to new pushes.
  Result<std::vector<NewPack>> PlaceRest();
  // Removes the places of all units in these packs. PlaceRest then assigns new ones.
  void Lose(const std::set<PackId>& packs);

  // Returns all packs that the image needs.
  std::vector<PackId> Packs() const;
  // Sets the packs and runs of the image's record.
  void Describe(ImageRecord& image) const;

  uint64_t total_bytes() const { return total_bytes_; }  // of distinct units
  uint64_t known_bytes() const { return known_bytes_; }  // of distinct units that need no upload

 private:
  static constexpr uint32_t kNone = ~0u;
  static constexpr uint32_t kZero = ~0u - 1;
  struct Place {
    uint32_t pack = kNone;  // index into packs_
    uint32_t unit = 0;
  };
  void FindCopies();
  void UseKnown(KnownUnits& known);
  const Place& PlaceOf(uint32_t item) const { return places_[first_of_[item]]; }
  std::vector<bool> UsedPacks() const;

  const ImageUnits& units_;
  const std::vector<Id128>& names_;
  std::vector<uint32_t> first_of_;  // the first item with the same name and length
  std::vector<Place> places_;       // of each first item
  std::vector<PackId> packs_;
  uint64_t total_bytes_ = 0;
  uint64_t known_bytes_ = 0;
};

}  // namespace stasis::repository
