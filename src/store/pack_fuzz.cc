// Opens a pack and reads all its units. The input is a recipe for a pack and its faults. All
// checksums are correct unless the recipe makes them wrong, so that the later checks are reached. A
// recipe of zeros is a valid pack without units.
//
//   bytes  of the recipe; numbers are little-endian
//   1      bit 0: units are blocks of 2 MiB, else pages of 4 KiB; the other bits are xored to the
//          version
//   1      xored to the footer's length
//   1      xored to its features
//   8      xored to the index's offset
//   8      xored to the number of extents
//   8      xored to the number of units
//   1      bytes cut off at the end
//   then for each extent, at most 16:
//   1      codec
//   1      bits: 1 its checksum is wrong, 2 that of its first unit is, 4 that unit has no name, 8
//          the padding is not zero, 16 the logical bytes are one more than the units have
//   1      units
//   4      blocks: the logical bytes; pages: the bytes by which the last unit is short
//   8      xored to the offset
//   8      xored to the stored bytes
//   2      stored bytes, which follow; without a codec repeated to fill the units
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/file.h"
#include "base/fuzz_input.h"
#include "base/little_endian.h"
#include "store/unit_jobs.h"

namespace stasis::store {
namespace {

struct Baked {
  uint32_t unit_bytes = kPageBytes;
  std::string extents;
  std::string units;
  uint64_t count = 0;
  uint64_t unit_count = 0;
};

// Appends one extent to `pack`.
void BakeExtent(FuzzInput& recipe, std::string& pack, Baked& index) {
  const uint32_t codec = recipe.Number<uint8_t>();
  const auto bits = recipe.Number<uint8_t>();
  const bool blocks = index.unit_bytes != kPageBytes;
  // A few small blocks are enough; large ones would be slow.
  const uint32_t units = recipe.Number<uint8_t>() % (blocks ? 3 : 64);
  const auto bytes = recipe.Number<uint32_t>();
  const uint64_t most = uint64_t{units} * index.unit_bytes;
  uint64_t logical_bytes = units == 0 ? 0 : most - bytes % index.unit_bytes;
  if (blocks && units > 0) {
    logical_bytes = most - index.unit_bytes + 1 + bytes % (64 << 10);
  }
  const auto offset_xor = recipe.Number<uint64_t>();
  const auto stored_xor = recipe.Number<uint64_t>();
  std::string stored(recipe.Bytes(recipe.Number<uint16_t>()));
  if (codec == 0) {
    std::string filled;
    if (stored.empty()) stored = "x";
    while (filled.size() < logical_bytes) filled += stored;
    stored = filled.substr(0, logical_bytes);
  }
  const uint64_t offset = pack.size();
  pack += stored;
  pack.resize((pack.size() + kPackAlign - 1) / kPackAlign * kPackAlign,
              (bits & 8) != 0 ? 'x' : '\0');
  Id128 checksum = codec == 0 ? Id128{} : Checksum(stored);
  if ((bits & 1) != 0) checksum.bytes[0] ^= 1;
  AppendNumber<uint64_t>(index.extents, offset ^ offset_xor);
  AppendNumber<uint64_t>(index.extents, stored.size() ^ stored_xor);
  AppendNumber<uint64_t>(index.extents, logical_bytes + ((bits & 16) != 0 ? 1 : 0));
  AppendNumber<uint32_t>(index.extents, units);
  AppendNumber<uint32_t>(index.extents, codec);
  index.extents += checksum.View();
  std::string logical = stored;
  if ((codec == 1 || codec == 2) && logical_bytes <= kMaxExtentBytes) {
    logical.assign(logical_bytes, '\0');
    (void)Decompress(static_cast<Codec>(codec), stored, logical.data(), logical.size());
  }
  logical.resize(logical_bytes);
  for (uint32_t i = 0; i < units; ++i) {
    std::string name = "the name of unit";
    name[0] = static_cast<char>(i);
    if ((bits & 4) != 0 && i == 0) name.assign(16, '\0');
    index.units += name;
    const uint64_t at = uint64_t{i} * index.unit_bytes;
    Id128 unit = Checksum(std::string_view(logical).substr(at, index.unit_bytes));
    if ((bits & 2) != 0 && i == 0) unit.bytes[0] ^= 1;
    index.units += unit.View();
  }
  index.count += 1;
  index.unit_count += units;
}

std::string Bake(FuzzInput recipe) {
  const auto first = recipe.Number<uint8_t>();
  const uint32_t footer_bytes = 128u ^ recipe.Number<uint8_t>();
  const uint64_t features = recipe.Number<uint8_t>();
  const auto body_xor = recipe.Number<uint64_t>();
  const auto count_xor = recipe.Number<uint64_t>();
  const auto units_xor = recipe.Number<uint64_t>();
  const size_t cut = recipe.Number<uint8_t>();
  std::string pack;
  Baked index;
  if ((first & 1) != 0) index.unit_bytes = kBlockBytes;
  while (index.count < 16 && !recipe.empty()) BakeExtent(recipe, pack, index);
  const uint64_t body = pack.size();
  const std::string raw = index.extents + index.units;
  pack += raw;
  std::string footer("\x89STPACK\n");
  AppendNumber<uint32_t>(footer, 1u ^ (first >> 1));
  AppendNumber(footer, footer_bytes);
  AppendNumber(footer, features);
  footer += "the id of a pack";
  AppendNumber<uint64_t>(footer, index.unit_bytes);
  AppendNumber<uint64_t>(footer, body ^ body_xor);
  AppendNumber<uint64_t>(footer, index.count ^ count_xor);
  AppendNumber<uint64_t>(footer, index.unit_count ^ units_xor);
  footer += Checksum(raw).View();
  footer.resize(112);
  footer += Checksum(footer).View();
  pack += footer;
  pack.resize(pack.size() - std::min(cut, pack.size()));
  return pack;
}

constexpr size_t kGuardBytes = 128;
constexpr char kGuard = 'G';

void ReadAll(const std::string& bytes) {
  OpenedFile file{UniqueFd(::memfd_create("pack", MFD_CLOEXEC)), bytes.size()};
  FuzzCheck(WriteAll(file.fd.get(), bytes).has_value());
  auto pack = PackReader::Open(std::move(file), "fuzz");
  if (!pack) {
    (void)pack.error().ToString();
    return;
  }
  const PackIndex& index = pack->index();
  uint64_t end = 0, units = 0, logical = 0;
  for (const Extent& extent : index.extents) {
    FuzzCheck(extent.offset % kPackAlign == 0 && extent.offset >= end);
    FuzzCheck(extent.end() <= index.body_bytes && index.body_bytes <= bytes.size());
    FuzzCheck(extent.first == units && &index.ExtentOf(extent.first) == &extent);
    FuzzCheck(!extent.is_compressed() || extent.logical_bytes <= kMaxExtentBytes);
    FuzzCheck(index.BytesOf(extent, extent.first, extent.units) == extent.logical_bytes);
    end = extent.end();
    units += extent.units;
    logical += extent.logical_bytes;
  }
  FuzzCheck(units == pack->units() && logical <= (64 << 20));
  UnitJobs jobs({&*pack});
  FuzzCheck(jobs.Add(0, 0, static_cast<uint32_t>(units)) == logical);
  jobs.Plan(UnitJobs::Order::kPacks);
  FuzzCheck(jobs.Used()[0].units == units);
  // The compression libraries are not compiled with a sanitizer, so guard bytes after the buffer
  // detect writes beyond its end.
  std::vector<char> out(logical + kGuardBytes, kGuard);
  char* const outputs[] = {out.data()};
  for (size_t i = 0; i < jobs.size(); ++i) {
    UnitJobs::UnitPlace where, checked;
    auto read = jobs.Run(i, outputs, nullptr, where);
    FuzzCheck(jobs.Run(i, {}, nullptr, checked).has_value() == read.has_value());
    FuzzCheck(where.at < logical && checked.at == where.at && checked.unit == where.unit);
    FuzzCheck(where.unit < units);
  }
  FuzzCheck(std::all_of(out.end() - kGuardBytes, out.end(), [](char c) { return c == kGuard; }));
  (void)jobs.AnyIsHole(0);
}

}  // namespace
}  // namespace stasis::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  stasis::store::ReadAll(stasis::store::Bake({data, size}));
  return 0;
}
