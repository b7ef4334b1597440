#include "store/pack_set.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/parallel.h"

namespace stasis::store {

namespace {

PackLimits WithDefaults(PackLimits limits) {
  if (limits.count == 0) limits.count = std::max(ProcessorCount(), 2u);
  limits.bytes = std::max<uint64_t>(limits.bytes, 1);
  return limits;
}

}  // namespace

PackSet::PackSet(image::ImageWriter& writer, PackLimits limits)
    : writer_(writer), limits_(WithDefaults(limits)) {}

// How many packs there are depends on the bytes alone, never on how the threads happened to run.
Result<uint32_t> PackSet::Take(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (slots_.size() < limits_.count && bytes_ >= slots_.size() * limits_.bytes) {
    STASIS_ASSIGN(image::PackWriter pack, writer_.AddPack());
    slots_.push_back(std::make_unique<Slot>(Slot{std::move(pack)}));
  }
  auto least = std::min_element(slots_.begin(), slots_.end(), [](const auto& a, const auto& b) {
    return std::tie(a->writers, a->bytes) < std::tie(b->writers, b->bytes);
  });
  (*least)->writers += 1;
  (*least)->bytes += bytes;
  bytes_ += bytes;
  return static_cast<uint32_t>(least - slots_.begin());
}

Result<uint32_t> PackSet::Append(const image::Id128& name, std::string_view stored,
                                 size_t logical_bytes, image::Codec codec) {
  STASIS_ASSIGN(const uint32_t index, Take(stored.size()));
  Slot* slot = nullptr;
  {
    std::lock_guard lock(mutex_);
    slot = slots_[index].get();
  }
  Status status = slot->pack.Append(name, stored, logical_bytes, codec);
  std::lock_guard lock(mutex_);
  slot->writers -= 1;
  if (!status) return Fail(std::move(status).error());
  return index;
}

Result<std::vector<image::Pack>> PackSet::Finish() {
  std::vector<image::Pack> packs;
  for (const auto& slot : slots_) {
    STASIS_TRY(slot->pack.Finish());
    image::Pack pack;
    pack.id = slot->pack.id();
    pack.used_blocks = slot->pack.blocks();
    pack.used_bytes = slot->pack.stored_bytes();
    packs.push_back(std::move(pack));
  }
  return packs;
}

}  // namespace stasis::store
