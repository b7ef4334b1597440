#include "repository/known_units.h"

#include <algorithm>

namespace stasis::repository {

namespace {

constexpr uint64_t kLeastUse = 2;  // a pack is worth keeping if at least one half of it is needed

// Returns whether a search can skip a record: it was removed, is damaged, or has an unknown format.
bool CanSkip(const Error& error) {
  return error.code == Code::kNotFound || error.code == Code::kDataLoss ||
         error.code == Code::kUnimplemented;
}

}  // namespace

Result<KnownUnits> KnownUnits::Look(const Repository& repository, const store::UnitNaming& naming,
                                    const objects::CallOptions& call) {
  return Look(repository, naming, call, Limits());
}

Result<KnownUnits> KnownUnits::Look(const Repository& repository, const store::UnitNaming& naming,
                                    const objects::CallOptions& call, const Limits& limits) {
  KnownUnits known;
  known.limits_ = limits;
  STASIS_ASSIGN(const auto packs, repository.List(kPacksPrefix, call));
  std::map<PackId, uint64_t> usable;
  for (const auto& object : packs) {
    if (const auto pack = ParsePackKey(object.key)) usable.emplace(*pack, object.bytes);
  }
  STASIS_ASSIGN(const References condemned, ReadAllCondemned(repository, call));
  for (const PackId& pack : condemned.packs) usable.erase(pack);
  STASIS_ASSIGN(const auto indexes, repository.List(kIndexPrefix, call));
  std::set<PushId> places;
  for (const auto& object : indexes) {
    const auto key = ParseIndexKey(object.key);
    if (key && !key->is_names && !condemned.pushes.contains(key->push)) places.insert(key->push);
  }
  for (const auto& object : indexes) {
    const auto key = ParseIndexKey(object.key);
    if (!key || !key->is_names || !places.contains(key->push)) continue;
    STASIS_TRY(known.AddNames(repository, key->push, naming, usable, call));
  }
  if (known.is_partial_) {
    known.notes_.push_back(
        "the repository has more units than a push can compare, so some were uploaded again");
  }
  if (known.packs_.empty()) return known;
  known.BuildTable();
  STASIS_TRY(known.MarkNeeded(repository, call));
  return known;
}

// Damaged or foreign names only have the effect that more units are uploaded.
Status KnownUnits::AddNames(const Repository& repository, const PushId& push,
                            const store::UnitNaming& naming,
                            const std::map<PackId, uint64_t>& usable,
                            const objects::CallOptions& call) {
  auto read = repository.ReadNames(push, call);
  if (!read) {
    if (!CanSkip(read.error())) return Fail(std::move(read).error());
    notes_.push_back("units were uploaded again: " + read.error().ToString());
    return {};
  }
  if (read->naming.function != naming.function || read->naming.key_id != naming.key_id) return {};
  uint64_t at = 0;
  for (PackTable& table : read->packs) {
    const uint64_t first = at;
    at += table.units();
    const PackId id{push, table.number()};
    const auto object = usable.find(id);
    // Skips packs that are missing or truncated.
    if (object == usable.end() || object->second != table.object_bytes()) continue;
    if (units_.size() + table.units() > limits_.units ||
        groups_ + table.groups().size() > limits_.groups) {
      is_partial_ = true;
      continue;
    }
    groups_ += table.groups().size();
    const auto pack = static_cast<uint32_t>(packs_.size());
    for (uint32_t number = 0; number < table.units(); ++number) {
      units_.push_back({pack, number});
      names_.push_back(read->names[first + number]);
    }
    std::vector<bool> needed(table.units());
    packs_.push_back({id, std::move(table), std::move(needed), 0});
  }
  return {};
}

std::map<PackId, uint64_t> KnownUnits::ObjectBytes() const {
  std::map<PackId, uint64_t> bytes;
  for (const KnownPack& pack : packs_) bytes.emplace(pack.id, pack.table.object_bytes());
  return bytes;
}

void KnownUnits::BuildTable() {
  by_name_ = store::NameTable(units_.size());
  auto name_of = [this](uint32_t unit) -> const Id128& { return names_[unit]; };
  for (uint32_t i = 0; i < units_.size(); ++i) {
    uint32_t& slot = by_name_.At(names_[i], name_of);
    if (slot == store::NameTable::kNone) slot = i;
  }
}

Status KnownUnits::MarkNeeded(const Repository& repository, const objects::CallOptions& call) {
  STASIS_ASSIGN(const auto images, repository.List(kImagesPrefix, call));
  for (const auto& object : images) {
    const auto name = ParseImageKey(object.key);
    if (!name) continue;
    auto image = repository.ReadImage(*name, call);
    if (image) {
      MarkUnits(*image);
    } else if (!CanSkip(image.error())) {
      return Fail(std::move(image).error());
    } else if (image.error().code != Code::kNotFound) {
      notes_.push_back(image.error().ToString());
    }
  }
  return {};
}

void KnownUnits::MarkUnits(const ImageRecord& image) {
  std::vector<KnownPack*> packs;
  for (const PackId& id : image.packs) {
    const auto found = std::lower_bound(
        packs_.begin(), packs_.end(), id,
        [](const KnownPack& pack, const PackId& wanted) { return pack.id < wanted; });
    packs.push_back(found != packs_.end() && found->id == id ? &*found : nullptr);
  }
  for (const auto& runs : image.sequences) {
    for (const StoredRun& run : runs) {
      KnownPack* pack = run.is_zero() ? nullptr : packs[run.pack];
      if (pack == nullptr || uint64_t{run.first} + run.units > pack->needed.size()) continue;
      for (uint32_t i = 0; i < run.units; ++i) Need(*pack, run.first + i);
    }
  }
}

void KnownUnits::Need(KnownPack& pack, uint32_t number) {
  if (pack.needed[number]) return;
  pack.needed[number] = true;
  pack.needed_bytes += pack.table.Place(number).sealed_bytes();
}

const KnownUnits::Unit* KnownUnits::Find(const Id128& name, uint32_t bytes) const {
  const uint32_t found =
      by_name_.Find(name, [this](uint32_t unit) -> const Id128& { return names_[unit]; });
  if (found == store::NameTable::kNone) return nullptr;
  const Unit& unit = units_[found];
  return packs_[unit.pack].table.Place(unit.number).plain_bytes == bytes ? &unit : nullptr;
}

void KnownUnits::Want(const Unit& unit) { Need(packs_[unit.pack], unit.number); }

bool KnownUnits::IsWorthKeeping(uint32_t pack) const {
  return packs_[pack].needed_bytes * kLeastUse >= packs_[pack].table.object_bytes();
}

}  // namespace stasis::repository
