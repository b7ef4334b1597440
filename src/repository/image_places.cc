#include "repository/image_places.h"

#include <fmt/format.h>

#include <map>

namespace stasis::repository {

namespace {

tl::unexpected<Error> Unusable(const Repository& repository, const std::string& key,
                               const std::string& how) {
  return Fail(Code::kDataLoss, Domain::kImage, 0, repository.NameOf(key) + " " + how);
}

}  // namespace

Status ImagePlaces::ReadTables(const Repository& repository, const objects::CallOptions& call) {
  std::map<PushId, std::vector<PackTable>> by_push;
  for (const PackId& id : record_->packs) {
    auto at = by_push.find(id.push);
    if (at == by_push.end()) {
      auto tables = repository.ReadPlace(id.push, call);
      if (!tables) {
        if (tables.error().code != Code::kNotFound) return Fail(std::move(tables).error());
        return Unusable(repository, PlaceKey(id.push), "is missing");
      }
      at = by_push.emplace(id.push, std::move(*tables)).first;
    }
    const PackTable* found = nullptr;
    for (const PackTable& table : at->second) {
      if (table.number() == id.number) found = &table;
    }
    if (found == nullptr) {
      return Unusable(repository, PlaceKey(id.push),
                      fmt::format("does not describe pack {}", id.number));
    }
    tables_.push_back(*found);
  }
  return {};
}

Status ImagePlaces::Check() const {
  const auto sequences = SequencesOf(record_->manifest);
  for (size_t i = 0; i < sequences.size(); ++i) {
    uint64_t unit = 0;
    for (const StoredRun& run : record_->sequences[i]) {
      const uint64_t first = unit;
      unit += run.units;
      if (run.is_zero()) continue;
      const PackTable& table = tables_[run.pack];
      for (uint32_t k = 0; k < run.units; ++k) {
        if (run.first + k >= table.units() ||
            table.Place(run.first + k).plain_bytes != sequences[i].UnitBytes(first + k)) {
          return Fail(Code::kDataLoss, Domain::kImage, 0,
                      fmt::format("{} does not have unit {} in the length that the image needs",
                                  PackKey(record_->packs[run.pack]), run.first + k));
        }
      }
    }
  }
  return {};
}

Result<ImagePlaces> ImagePlaces::Read(const Repository& repository, const ImageRecord& record,
                                      const objects::CallOptions& call) {
  ImagePlaces places(record);
  STASIS_TRY(places.ReadTables(repository, call));
  STASIS_TRY(places.Check());
  return places;
}

}  // namespace stasis::repository
