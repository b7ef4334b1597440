// The layout of a pack: units of memory in extents, and an index at the end of the file, which
// locates each unit. docs/format/image.md has the byte tables. A unit is a block of 2 MiB, which is
// read with one direct read, or a page of 4 KiB, of which an extent contains many. A pack has no
// header, so appending an index turns a file of CRIU into a pack.
//
// The number of a unit is its position in the index. A finished pack never changes, except that gc
// punches holes where units were that no image needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/id128.h"
#include "base/result.h"
#include "store/codec.h"
#include "store/limits.h"

namespace stasis::store {

struct Extent {
  uint64_t offset = 0;         // in the file, a multiple of 4096
  uint64_t stored_bytes = 0;   // equal to logical_bytes without a codec, otherwise less
  uint64_t logical_bytes = 0;  // of its units; only the last unit may be short
  uint32_t units = 0;
  Codec codec = Codec::kNone;
  Id128 checksum;      // of the stored bytes, if there is a codec
  uint32_t first = 0;  // number of its first unit; follows from the extents before

  bool is_compressed() const { return codec != Codec::kNone; }
  uint64_t padded_bytes() const {
    return (stored_bytes + kPackAlign - 1) / kPackAlign * kPackAlign;
  }
  uint64_t end() const { return offset + padded_bytes(); }
};

struct PackUnit {
  Id128 name;      // unit_names.h; never zero
  Id128 checksum;  // of its logical bytes
};

struct PackIndex {
  Id128 id;
  uint32_t unit_bytes = 0;  // kPageBytes or kBlockBytes
  uint64_t body_bytes = 0;  // of the file, before the index
  Id128 checksum;           // of the index
  std::vector<Extent> extents;
  std::vector<PackUnit> units;

  // Adds an extent that begins at or after the end of the last one. Merges adjacent extents that
  // are not compressed.
  void Add(const Extent& extent, std::span<const PackUnit> extent_units);
  // The extent that contains the unit.
  const Extent& ExtentOf(uint32_t unit) const;
  // Returns the logical size of `count` units from `first` on. All of them must be in this extent.
  uint64_t BytesOf(const Extent& extent, uint32_t first, uint32_t count) const;
};

// Appends the index to a file whose first `index.body_bytes` bytes, a multiple of 4096, are the
// extents, and shortens the file if it is longer. Returns the checksum of the index. `path` names
// the file in errors.
Result<Id128> WritePackIndex(int fd, const std::string& path, const PackIndex& index);

// Reads and checks the index of a file of `size_bytes`. `what` names the file in errors.
//   kDataLoss       the index is damaged; the message says how
//   kUnimplemented  this Stasis does not support a version, feature or codec
Result<PackIndex> ReadPackIndex(int fd, uint64_t size_bytes, const std::string& what);

// Returns the error for a damaged pack.
tl::unexpected<Error> DamagedPack(const std::string& what, const std::string& how);

}  // namespace stasis::store
