#include "repository/image_places.h"

#include <fmt/format.h>

#include <algorithm>

namespace stasis::repository {

namespace {

tl::unexpected<Error> Unusable(const Repository& repository, const std::string& key,
                               const std::string& how) {
  return Fail(Code::kDataLoss, Domain::kImage, 0, repository.NameOf(key) + " " + how);
}

}  // namespace

// Keeps the tables of the image's packs only: an index may describe many others.
Status ImagePlaces::ReadTables(const Repository& repository, const objects::CallOptions& call,
                               uint64_t max_groups) {
  uint64_t groups = 0;
  tables_.resize(record_->packs.size());
  for (const auto& [push, packs] : PacksByPush(*record_)) {
    auto read = repository.ReadPlace(push, call);
    if (!read) {
      if (read.error().code != Code::kNotFound) return Fail(std::move(read).error());
      return Unusable(repository, PlaceKey(push), "is missing");
    }
    for (const uint32_t pack : packs) {
      const uint32_t number = record_->packs[pack].number;
      const auto found = std::find_if(read->begin(), read->end(), [&](const PackTable& table) {
        return table.number() == number;
      });
      if (found == read->end()) {
        return Unusable(repository, PlaceKey(push),
                        fmt::format("does not describe pack {}", number));
      }
      groups += found->groups().size();
      if (groups > max_groups) {
        return Fail(
            Code::kResourceExhausted, Domain::kImage, 0,
            fmt::format("the indexes of the image's packs in {} have more than {} groups of "
                        "units",
                        repository.store().Name(), max_groups));
      }
      tables_[pack] = std::move(*found);
    }
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
                                      const objects::CallOptions& call, uint64_t max_groups) {
  ImagePlaces places(record);
  STASIS_TRY(places.ReadTables(repository, call, max_groups));
  STASIS_TRY(places.Check());
  return places;
}

}  // namespace stasis::repository
