#include "repository/pack_names.h"

#include <fmt/format.h>

#include <map>

namespace stasis::repository {

Result<PackNames> ReadPackNames(const Repository& repository, const ImageRecord& record,
                                const store::UnitNames& names, const objects::CallOptions& call,
                                std::vector<std::string>& unread) {
  const Id128& key = names.key().id();
  std::map<PushId, NamesIndex> by_push;
  for (const PackId& pack : record.packs) {
    if (by_push.contains(pack.push)) continue;
    auto index = repository.ReadNames(pack.push, call);
    if (!index) {
      if (index.error().code == Code::kCancelled) return Fail(std::move(index).error());
      unread.push_back(index.error().ToString());
      index = NamesIndex();
    }
    const bool is_ours =
        index->naming.function == store::kUnitNameFunction && index->naming.key_id == key;
    by_push.emplace(pack.push, is_ours ? std::move(*index) : NamesIndex());
  }
  PackNames by_pack;
  for (const PackId& pack : record.packs) {
    const NamesIndex& index = by_push[pack.push];
    auto& of_pack = by_pack.emplace_back();
    size_t at = 0;
    for (const PackTable& table : index.packs) {
      const auto begin = index.names.begin() + static_cast<ptrdiff_t>(at);
      at += table.units();
      if (table.number() == pack.number) of_pack.assign(begin, begin + table.units());
    }
  }
  return by_pack;
}

tl::unexpected<Error> WrongUnitName(const ImagePlaces& places, const StoredUnit& stored) {
  return Fail(Code::kDataLoss, Domain::kImage, 0,
              fmt::format("unit {} of {} does not have the name that the repository records",
                          stored.unit, PackKey(places.id(stored.pack))));
}

Status CheckUnitName(const PackNames& known, const store::UnitNames& names,
                     const ImagePlaces& places, const StoredUnit& stored, std::string_view plain) {
  const auto& of_pack = known[stored.pack];
  if (stored.unit >= of_pack.size()) return {};
  STASIS_ASSIGN(const Id128 name, names.NameOf(plain));
  return name == of_pack[stored.unit] ? Status() : WrongUnitName(places, stored);
}

}  // namespace stasis::repository
