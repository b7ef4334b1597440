#include "repository/item_names.h"

#include <fmt/format.h>

#include <atomic>
#include <string_view>

#include "store/thread_buffer.h"

namespace stasis::repository {

namespace {

constexpr uint64_t kBatchBytes = 4 << 20;  // read at once

using Target = ImageUnits::Target;

// Divides items into batches of at most kBatchBytes.
std::vector<std::vector<Target>> Batches(const ImageUnits& units,
                                         const std::vector<uint32_t>& items) {
  std::vector<std::vector<Target>> batches;
  uint64_t at = kBatchBytes;
  for (const uint32_t item : items) {
    const uint32_t bytes = units.items()[item].bytes;
    if (at + bytes > kBatchBytes) {
      batches.emplace_back();
      at = 0;
    }
    batches.back().push_back({item, at});
    at += bytes;
  }
  return batches;
}

// Returns the names of the data in `buffer`; zero for data that is all zero.
Result<std::vector<Id128>> NamesOfData(const ImageUnits& units, const store::UnitNames& names,
                                       std::span<const Target> targets, const char* buffer) {
  std::vector<Id128> hashes;
  std::vector<size_t> places;
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::string_view data(buffer + targets[i].at, units.items()[targets[i].item].bytes);
    if (IsAllZero(data)) continue;
    hashes.push_back(names.key().Hash(data));
    places.push_back(i);
  }
  STASIS_TRY(names.Encrypt(hashes));
  std::vector<Id128> result(targets.size());
  for (size_t i = 0; i < places.size(); ++i) result[places[i]] = hashes[i];
  return result;
}

}  // namespace

Result<std::vector<Id128>> NameItems(const ImageUnits& units, const store::ImageReader& image,
                                     const store::UnitNames& names, bool trusts_index,
                                     const Progress& progress) {
  const auto& naming = image.manifest().unit_naming;
  const bool uses_index = trusts_index && naming && naming->function == store::kUnitNameFunction &&
                          naming->key_id == names.key().id();
  std::vector<Id128> all(units.items().size());
  std::vector<uint32_t> to_read;
  uint64_t bytes = 0;
  for (uint32_t item = 0; item < all.size(); ++item) {
    if (uses_index && units.IsInPack(item)) {
      all[item] = units.RecordedName(item);
    } else {
      to_read.push_back(item);
      bytes += units.items()[item].bytes;
    }
  }
  const auto batches = Batches(units, to_read);
  std::atomic<uint64_t> done{0};
  auto name_batch = [&](size_t i) -> Status {
    thread_local store::ThreadBuffer<kBatchBytes> buffer;
    STASIS_TRY(units.Read(batches[i], buffer.data()));
    STASIS_ASSIGN(const auto found, NamesOfData(units, names, batches[i], buffer.data()));
    for (size_t k = 0; k < found.size(); ++k) {
      all[batches[i][k].item] = found[k];
      done += units.items()[batches[i][k].item].bytes;
    }
    return {};
  };
  STASIS_TRY(ForEachWithProgress(batches.size(), name_batch, done, bytes, progress));
  return all;
}

Status CheckNames(const ImageUnits& units, const store::UnitNames& names,
                  std::span<const Target> targets, const char* buffer,
                  const std::vector<Id128>& expected) {
  STASIS_ASSIGN(const auto found, NamesOfData(units, names, targets, buffer));
  for (size_t i = 0; i < targets.size(); ++i) {
    if (found[i] == expected[targets[i].item]) continue;
    return Fail(Code::kDataLoss, Domain::kImage, 0,
                fmt::format("unit {} of the image does not have the name that its index records",
                            targets[i].item),
                store::kOtherCopyHint);
  }
  return {};
}

}  // namespace stasis::repository
