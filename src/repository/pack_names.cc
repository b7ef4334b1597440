#include "repository/pack_names.h"

#include <fmt/format.h>

#include <map>
#include <span>

namespace stasis::repository {

Result<PackNames> ReadPackNames(const Repository& repository, const ImageRecord& record,
                                const store::UnitNames& names, const objects::CallOptions& call,
                                std::vector<std::string>& unread, uint64_t max_names) {
  PackNames by_pack(record.packs.size());
  uint64_t kept = 0;
  for (const auto& [push, packs] : PacksByPush(record)) {
    auto index = repository.ReadNames(push, call);
    if (!index) {
      if (index.error().code == Code::kCancelled) return Fail(std::move(index).error());
      unread.push_back(index.error().ToString());
      continue;
    }
    if (index->naming.function != store::kUnitNameFunction ||
        index->naming.key_id != names.key().id()) {
      continue;
    }
    std::map<uint32_t, std::span<const Id128>> by_number;
    std::span<const Id128> rest = index->names;
    for (const PackTable& table : index->packs) {
      by_number[table.number()] = rest.first(table.units());
      rest = rest.subspan(table.units());
    }
    for (const uint32_t pack : packs) {
      const auto of_pack = by_number[record.packs[pack].number];
      kept += of_pack.size();
      if (kept > max_names) {
        unread.push_back(fmt::format("the packs of the image in {} have more than {} units",
                                     repository.store().Name(), max_names));
        return by_pack;
      }
      by_pack[pack].assign(of_pack.begin(), of_pack.end());
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
