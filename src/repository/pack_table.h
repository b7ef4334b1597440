// Locates the units in a push's packs. Each index of a push begins with such a table
// (docs/format/repository.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/id128.h"
#include "base/result.h"
#include "repository/record.h"
#include "store/codec.h"

namespace stasis::repository {

// Units of a pack that follow each other and have the same lengths.
struct UnitGroup {
  uint32_t units = 0;
  uint32_t plain_bytes = 0;   // of each unit, uncompressed
  uint32_t stored_bytes = 0;  // of each unit, without its tag; fewer than plain_bytes with a codec
  store::Codec codec = store::Codec::kNone;

  bool operator==(const UnitGroup&) const = default;
};

// One unit of a pack.
struct UnitPlace {
  uint64_t offset = 0;  // in the object
  uint32_t plain_bytes = 0;
  uint32_t stored_bytes = 0;
  store::Codec codec = store::Codec::kNone;

  uint64_t sealed_bytes() const;  // with the tag
  uint64_t end() const { return offset + sealed_bytes(); }
};

// The units of one pack, numbered from 0 without gaps in the order of the object.
class PackTable {
 public:
  PackTable() = default;
  PackTable(uint32_t number, const Id128& seal_id) : number_(number), seal_id_(seal_id) {}

  // Appends a unit. Joins it with the last group if the lengths are the same.
  void Add(uint32_t plain_bytes, uint32_t stored_bytes, store::Codec codec);

  uint32_t number() const { return number_; }  // in the push, from 1
  const Id128& seal_id() const { return seal_id_; }
  uint32_t units() const { return units_; }
  uint64_t object_bytes() const { return object_bytes_; }
  // `unit` must be less than units().
  UnitPlace Place(uint32_t unit) const;
  const std::vector<UnitGroup>& groups() const { return groups_; }

  bool operator==(const PackTable&) const = default;

 private:
  friend Result<std::vector<PackTable>> ReadPackTables(BodyReader& body);
  struct Start {
    uint32_t unit;
    uint64_t offset;
    bool operator==(const Start&) const = default;
  };
  Status AddGroup(const UnitGroup& group);
  void Append(const UnitGroup& group);

  uint32_t number_ = 0;
  Id128 seal_id_;
  uint32_t units_ = 0;
  uint64_t object_bytes_ = 0;
  std::vector<UnitGroup> groups_;
  std::vector<Start> starts_;  // of each group
};

void AppendPackTables(std::string& body, const std::vector<PackTable>& packs);
// Returns kDataLoss if a rule of the format is broken. The numbers of the packs are ascending.
Result<std::vector<PackTable>> ReadPackTables(BodyReader& body);

}  // namespace stasis::repository
