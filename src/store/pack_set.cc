#include "store/pack_set.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/parallel.h"
#include "store/clock.h"

namespace stasis::store {

namespace {

PackLimits WithDefaults(PackLimits limits) {
  if (limits.count == 0) limits.count = std::max(ProcessorCount(), 2u);
  limits.bytes = std::max<uint64_t>(limits.bytes, 1);
  return limits;
}

}  // namespace

PackSet::PackSet(ImageWriter& writer, PackLimits limits, uint32_t unit_bytes)
    : writer_(writer), limits_(WithDefaults(limits)), unit_bytes_(unit_bytes) {}

// The number of packs depends only on the bytes, not on the timing of the threads.
Result<PackSet::Slot*> PackSet::ChoosePack(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (slots_.size() < limits_.count && bytes_ >= slots_.size() * limits_.bytes) {
    Pack pack;
    STASIS_ASSIGN(pack.id, Id128::Random());
    STASIS_ASSIGN(UniqueFd fd, writer_.AddPack(pack));
    slots_.push_back(
        {static_cast<uint32_t>(slots_.size()),
         std::make_unique<PackWriter>(std::move(fd), writer_.partial_path() + "/" + pack.path(),
                                      pack.id, unit_bytes_)});
  }
  auto least = std::min_element(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) {
    return std::tie(a.writers, a.bytes) < std::tie(b.writers, b.bytes);
  });
  least->writers += 1;
  least->bytes += bytes;
  bytes_ += bytes;
  return &*least;
}

Result<PackSet::Place> PackSet::Append(std::span<const PackUnit> units, std::string_view stored,
                                       uint64_t logical_bytes, Codec codec) {
  STASIS_ASSIGN(Slot * slot, ChoosePack(stored.size()));
  auto first = slot->pack->Append(units, stored, logical_bytes, codec);
  std::lock_guard lock(mutex_);
  slot->writers -= 1;
  if (!first) return Fail(std::move(first).error());
  return Place{slot->index, *first};
}

Result<std::vector<Pack>> PackSet::Finish() {
  std::vector<Pack> packs;
  for (const Slot& slot : slots_) {
    STASIS_TRY(slot.pack->Finish());
    Pack pack;
    pack.id = slot.pack->id();
    pack.unit_bytes = unit_bytes_;
    pack.used_units = slot.pack->units();
    pack.used_bytes = slot.pack->stored_bytes();
    pack.checked_unix_ns = UnixNow();
    packs.push_back(pack);
  }
  return packs;
}

}  // namespace stasis::store
