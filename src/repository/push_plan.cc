#include "repository/push_plan.h"

#include <map>

#include "repository/limits.h"
#include "store/name_table.h"

namespace stasis::repository {

PushPlan::PushPlan(const ImageUnits& units, const std::vector<Id128>& names, KnownUnits& known)
    : units_(units), names_(names), first_of_(names.size()), places_(names.size()) {
  FindCopies();
  UseKnown(known);
}

// A name covers the length of its unit, so equal names mean equal lengths.
void PushPlan::FindCopies() {
  store::NameTable first_by_name(names_.size());
  auto name_of = [this](uint32_t item) -> const Id128& { return names_[item]; };
  for (uint32_t item = 0; item < names_.size(); ++item) {
    first_of_[item] = item;
    if (names_[item].IsZero()) {
      places_[item] = {kZero, 0};
      continue;
    }
    uint32_t& first = first_by_name.At(names_[item], name_of);
    if (first == store::NameTable::kNone) {
      first = item;
      total_bytes_ += units_.items()[item].bytes;
    }
    first_of_[item] = first;
  }
}

void PushPlan::UseKnown(KnownUnits& known) {
  std::vector<const KnownUnits::Unit*> found(names_.size());
  for (uint32_t item = 0; item < names_.size(); ++item) {
    if (first_of_[item] != item || places_[item].pack == kZero) continue;
    found[item] = known.Find(names_[item], units_.items()[item].bytes);
    if (found[item] != nullptr) known.Want(*found[item]);
  }
  std::map<uint32_t, uint32_t> index_of;  // known pack to index into packs_
  for (uint32_t item = 0; item < names_.size(); ++item) {
    if (found[item] == nullptr || !known.IsWorthKeeping(found[item]->pack)) continue;
    const auto [at, is_new] =
        index_of.emplace(found[item]->pack, static_cast<uint32_t>(packs_.size()));
    if (is_new) packs_.push_back(known.PackOf(found[item]->pack));
    places_[item] = {at->second, found[item]->number};
    known_bytes_ += units_.items()[item].bytes;
  }
}

Result<std::vector<NewPack>> PushPlan::PlaceRest() {
  std::vector<NewPack> packs;
  uint64_t pack_bytes = 0;
  uint64_t push_units = 0;
  for (uint32_t item = 0; item < places_.size(); ++item) {
    if (first_of_[item] != item || places_[item].pack != kNone) continue;
    const uint64_t bytes = uint64_t{units_.items()[item].bytes} + kTagBytes;
    const bool is_push_full =
        packs.empty() || push_units >= kMaxPushUnits ||
        (packs.back().id.number >= kMaxPushPacks && pack_bytes + bytes > kMaxPackBytes);
    if (is_push_full || pack_bytes + bytes > kMaxPackBytes) {
      PackId id;
      if (is_push_full) {
        STASIS_ASSIGN(id.push, PushId::Random());
        push_units = 0;
      } else {
        id = packs.back().id;
      }
      id.number += 1;
      packs.push_back({id, {}});
      packs_.push_back(id);
      pack_bytes = 0;
    }
    places_[item] = {static_cast<uint32_t>(packs_.size() - 1),
                     static_cast<uint32_t>(packs.back().items.size())};
    packs.back().items.push_back(item);
    pack_bytes += bytes;
    push_units += 1;
  }
  return packs;
}

void PushPlan::Lose(const std::set<PackId>& packs) {
  for (Place& place : places_) {
    if (place.pack < packs_.size() && packs.contains(packs_[place.pack])) place = {};
  }
}

std::vector<bool> PushPlan::UsedPacks() const {
  std::vector<bool> used(packs_.size());
  for (const Place& place : places_) {
    if (place.pack < packs_.size()) used[place.pack] = true;
  }
  return used;
}

std::vector<PackId> PushPlan::Packs() const {
  std::vector<PackId> packs;
  const auto used = UsedPacks();
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) packs.push_back(packs_[i]);
  }
  return packs;
}

void PushPlan::Describe(ImageRecord& image) const {
  image.packs = Packs();
  const auto used = UsedPacks();
  std::vector<uint32_t> index_of(used.size());  // in image.packs
  uint32_t next = 0;
  for (size_t i = 0; i < used.size(); ++i) index_of[i] = used[i] ? next++ : 0;
  image.sequences.clear();
  for (const auto& runs : units_.runs()) {
    auto& stored = image.sequences.emplace_back();
    for (const ImageUnits::Run& run : runs) {
      if (run.is_zero()) {
        AppendRun(stored, {StoredRun::kZeros, 0, run.units});
        continue;
      }
      for (uint32_t i = 0; i < run.units; ++i) {
        const Place& place = PlaceOf(run.first + i);
        AppendRun(stored, place.pack == kZero ? StoredRun{StoredRun::kZeros, 0, 1}
                                              : StoredRun{index_of[place.pack], place.unit, 1});
      }
    }
  }
}

}  // namespace stasis::repository
