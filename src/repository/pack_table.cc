#include "repository/pack_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "base/little_endian.h"
#include "repository/limits.h"

namespace stasis::repository {

namespace {

constexpr size_t kTableHeaderBytes = 24;  // number, groups, id of the sealing
constexpr size_t kGroupBytes = 16;

}  // namespace

uint64_t UnitPlace::sealed_bytes() const { return uint64_t{stored_bytes} + kTagBytes; }

void PackTable::Append(const UnitGroup& group) {
  groups_.push_back(group);
  starts_.push_back({units_, object_bytes_});
  units_ += group.units;
  object_bytes_ += group.units * (uint64_t{group.stored_bytes} + kTagBytes);
}

void PackTable::Add(uint32_t plain_bytes, uint32_t stored_bytes, store::Codec codec) {
  const UnitGroup one{1, plain_bytes, stored_bytes, codec};
  if (!groups_.empty()) {
    UnitGroup& last = groups_.back();
    if (UnitGroup{1, last.plain_bytes, last.stored_bytes, last.codec} == one) {
      last.units += 1;
      units_ += 1;
      object_bytes_ += uint64_t{stored_bytes} + kTagBytes;
      return;
    }
  }
  Append(one);
}

Status PackTable::AddGroup(const UnitGroup& group) {
  const bool is_compressed = group.codec != store::Codec::kNone;
  if (static_cast<uint32_t>(group.codec) > store::kLastCodec || group.units == 0 ||
      group.plain_bytes == 0 || group.plain_bytes > kMaxUnitBytes || group.stored_bytes == 0 ||
      (is_compressed ? group.stored_bytes >= group.plain_bytes
                     : group.stored_bytes != group.plain_bytes)) {
    return BadRecord(fmt::format("pack {} claims {} units of {} bytes, stored as {} with codec {}",
                                 number_, group.units, group.plain_bytes, group.stored_bytes,
                                 static_cast<uint32_t>(group.codec)));
  }
  const uint64_t bytes = group.units * (uint64_t{group.stored_bytes} + kTagBytes);
  if (bytes > kMaxPackBytes || object_bytes_ + bytes > kMaxPackBytes) {
    return BadRecord(fmt::format("pack {} claims more than {} bytes", number_, kMaxPackBytes));
  }
  Append(group);
  return {};
}

UnitPlace PackTable::Place(uint32_t unit) const {
  assert(unit < units_);
  const auto behind =
      std::upper_bound(starts_.begin(), starts_.end(), unit,
                       [](uint32_t u, const Start& start) { return u < start.unit; });
  const size_t index = static_cast<size_t>(behind - starts_.begin()) - 1;
  const UnitGroup& group = groups_[index];
  const uint64_t offset = starts_[index].offset +
                          (unit - starts_[index].unit) * (uint64_t{group.stored_bytes} + kTagBytes);
  return {offset, group.plain_bytes, group.stored_bytes, group.codec};
}

void AppendPackTables(std::string& body, const std::vector<PackTable>& packs) {
  AppendNumber(body, static_cast<uint32_t>(packs.size()));
  for (const PackTable& pack : packs) {
    AppendNumber(body, pack.number());
    AppendNumber(body, static_cast<uint32_t>(pack.groups().size()));
    body += pack.seal_id().View();
    for (const UnitGroup& group : pack.groups()) {
      AppendNumber(body, group.units);
      AppendNumber(body, group.plain_bytes);
      AppendNumber(body, group.stored_bytes);
      AppendNumber(body, static_cast<uint32_t>(group.codec));
    }
  }
}

Result<std::vector<PackTable>> ReadPackTables(BodyReader& body) {
  STASIS_ASSIGN(const uint32_t count, body.Count(kMaxPushPacks, kTableHeaderBytes, "packs"));
  std::vector<PackTable> packs;
  uint64_t units = 0;
  for (uint32_t i = 0; i < count; ++i) {
    STASIS_ASSIGN(const auto number, body.Number<uint32_t>());
    STASIS_ASSIGN(const uint32_t groups, body.Count(kMaxPushUnits, kGroupBytes, "groups"));
    STASIS_ASSIGN(const std::string_view seal_id, body.Bytes(Id128::kBytes));
    const uint32_t before = packs.empty() ? 0 : packs.back().number();
    if (number <= before || number > kMaxPushPacks || groups == 0) {
      return BadRecord(
          fmt::format("pack {} with {} groups follows pack {}: numbers must ascend, up to {}, and "
                      "a pack has at least one group",
                      number, groups, before, kMaxPushPacks));
    }
    PackTable& pack = packs.emplace_back(number, Id128::FromRaw(seal_id.data()));
    for (uint32_t g = 0; g < groups; ++g) {
      UnitGroup group;
      STASIS_ASSIGN(group.units, body.Number<uint32_t>());
      STASIS_ASSIGN(group.plain_bytes, body.Number<uint32_t>());
      STASIS_ASSIGN(group.stored_bytes, body.Number<uint32_t>());
      STASIS_ASSIGN(const auto codec, body.Number<uint32_t>());
      group.codec = static_cast<store::Codec>(codec);
      STASIS_TRY(pack.AddGroup(group));
    }
    units += pack.units();
    if (units > kMaxPushUnits) {
      return BadRecord(fmt::format("it claims more than {} units", kMaxPushUnits));
    }
  }
  return packs;
}

}  // namespace stasis::repository
