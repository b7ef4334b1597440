#include "store/pack_index.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <memory>

#include "base/checksum.h"
#include "base/file.h"
#include "base/little_endian.h"
#include "store/image_folder.h"

namespace stasis::store {

namespace {

constexpr std::string_view kPackMagic = "\x89STPACK\n";
constexpr uint32_t kPackVersion = 1;
constexpr size_t kExtentEntryBytes = 48;
constexpr size_t kUnitEntryBytes = 32;
constexpr size_t kFooterBytes = 128;
constexpr size_t kFlushBytes = 4 << 20;
constexpr size_t kIndexReadBytes = 1 << 20;

// Writes the bytes of an index piece by piece, and computes their checksum.
class Tail {
 public:
  Tail(int fd, uint64_t offset) : fd_(fd), offset_(offset) {}
  uint64_t offset() const { return offset_; }
  std::string& text() { return text_; }
  Status FlushIfFull() { return text_.size() < kFlushBytes ? Status{} : Flush(); }
  Status Flush() {
    checksum_.Update(text_);
    std::string_view rest = text_;
    while (!rest.empty()) {
      const ssize_t n =
          TEMP_FAILURE_RETRY(::pwrite(fd_, rest.data(), rest.size(), static_cast<off_t>(offset_)));
      if (n < 0) return FailErrno(errno, "write");
      rest.remove_prefix(static_cast<size_t>(n));
      offset_ += static_cast<uint64_t>(n);
    }
    text_.clear();
    return {};
  }
  Id128 checksum() const { return checksum_.Finish(); }

 private:
  const int fd_;
  uint64_t offset_;
  std::string text_;
  ChecksumStream checksum_;
};

void Append(std::string& to, const Extent& extent) {
  AppendNumber<uint64_t>(to, extent.offset);
  AppendNumber<uint64_t>(to, extent.stored_bytes);
  AppendNumber<uint64_t>(to, extent.logical_bytes);
  AppendNumber<uint32_t>(to, extent.units);
  AppendNumber<uint32_t>(to, static_cast<uint32_t>(extent.codec));
  to += extent.checksum.View();
}

Result<Id128> WriteTail(int fd, const PackIndex& index) {
  Tail tail(fd, index.body_bytes);
  for (const Extent& extent : index.extents) {
    Append(tail.text(), extent);
    STASIS_TRY(tail.FlushIfFull());
  }
  for (const PackUnit& unit : index.units) {
    tail.text() += unit.name.View();
    tail.text() += unit.checksum.View();
    STASIS_TRY(tail.FlushIfFull());
  }
  STASIS_TRY(tail.Flush());
  const Id128 checksum = tail.checksum();

  std::string& footer = tail.text();
  footer = kPackMagic;
  AppendNumber<uint32_t>(footer, kPackVersion);
  AppendNumber<uint32_t>(footer, kFooterBytes);
  AppendNumber<uint64_t>(footer, 0);  // features
  footer += index.id.View();
  AppendNumber<uint64_t>(footer, index.unit_bytes);
  AppendNumber<uint64_t>(footer, index.body_bytes);
  AppendNumber<uint64_t>(footer, index.extents.size());
  AppendNumber<uint64_t>(footer, index.units.size());
  footer += checksum.View();
  footer.resize(kFooterBytes - Id128::kBytes);
  footer += Checksum(footer).View();
  STASIS_TRY(tail.Flush());
  if (::ftruncate(fd, static_cast<off_t>(tail.offset())) != 0) return FailErrno(errno, "truncate");
  return checksum;
}

// The numbers of the footer.
struct Footer {
  PackIndex index;
  uint64_t extents = 0;
  uint64_t units = 0;
};

Result<Footer> ReadFooter(int fd, uint64_t size, const std::string& what) {
  if (size < kFooterBytes) {
    return DamagedPack(what, fmt::format("{} bytes are too few for a pack", size));
  }
  std::string raw(kFooterBytes, '\0');
  STASIS_TRY(Annotate(PreadAll(fd, raw.data(), raw.size(), size - kFooterBytes), "read " + what));
  const std::string_view sealed(raw.data(), kFooterBytes - Id128::kBytes);
  if (!sealed.starts_with(kPackMagic) ||
      Checksum(sealed) != Id128::FromRaw(raw.data() + sealed.size())) {
    return DamagedPack(what, "its last bytes are not those of a pack");
  }
  const auto version = NumberAt<uint32_t>(raw, 8);
  const auto features = NumberAt<uint64_t>(raw, 16);
  if (version != kPackVersion || features != 0) {
    return Fail(
        Code::kUnimplemented, Domain::kImage, version,
        fmt::format("{} has pack format {} with features {:#x}; this Stasis reads format {} "
                    "without features",
                    what, version, features, kPackVersion),
        "Use a newer Stasis.");
  }
  Footer footer;
  footer.index.id = Id128::FromRaw(raw.data() + 24);
  const auto unit_bytes = NumberAt<uint64_t>(raw, 40);
  footer.index.body_bytes = NumberAt<uint64_t>(raw, 48);
  footer.extents = NumberAt<uint64_t>(raw, 56);
  footer.units = NumberAt<uint64_t>(raw, 64);
  footer.index.checksum = Id128::FromRaw(raw.data() + 72);
  // Bound the counts before anything is multiplied with them or allocated for them.
  const bool bounded = footer.extents <= footer.units && footer.units <= kMaxPackUnits &&
                       footer.index.body_bytes <= size &&
                       (unit_bytes == kPageBytes || unit_bytes == kBlockBytes);
  if (!bounded || NumberAt<uint32_t>(raw, 12) != kFooterBytes ||
      footer.index.body_bytes % kPackAlign != 0 ||
      size - footer.index.body_bytes !=
          footer.extents * kExtentEntryBytes + footer.units * kUnitEntryBytes + kFooterBytes) {
    return DamagedPack(
        what, fmt::format("its footer announces {} extents with {} units of {} bytes and an index "
                          "at byte {}, which does not match its length of {} bytes",
                          footer.extents, footer.units, unit_bytes, footer.index.body_bytes, size));
  }
  footer.index.unit_bytes = static_cast<uint32_t>(unit_bytes);
  return footer;
}

// Calls f(entry) for `count` entries from `offset` on, and moves `offset` to their end. Reads them
// in pieces, because an index may have hundreds of MiB.
template <class F>
Status ForEachEntry(int fd, const std::string& what, uint64_t& offset, uint64_t count,
                    size_t entry_bytes, ChecksumStream& checksum, F f) {
  const uint64_t at_once = std::min<uint64_t>(count, kIndexReadBytes / entry_bytes);
  const auto buffer = std::make_unique_for_overwrite<char[]>(at_once * entry_bytes);
  for (uint64_t done = 0; done < count;) {
    const uint64_t some = std::min(at_once, count - done);
    const std::string_view piece(buffer.get(), some * entry_bytes);
    STASIS_TRY(Annotate(PreadAll(fd, buffer.get(), piece.size(), offset), "read " + what));
    checksum.Update(piece);
    for (uint64_t i = 0; i < some; ++i) f(piece.substr(i * entry_bytes, entry_bytes));
    done += some;
    offset += piece.size();
  }
  return {};
}

Status CheckExtent(const PackIndex& index, const Extent& extent, const std::string& what) {
  if (static_cast<uint32_t>(extent.codec) > kLastCodec) {
    return Fail(Code::kUnimplemented, Domain::kImage, static_cast<int64_t>(extent.codec),
                fmt::format("{}: the extent at byte {} is stored with codec {}, which this Stasis "
                            "does not support",
                            what, extent.offset, static_cast<uint32_t>(extent.codec)),
                "Use a newer Stasis.");
  }
  const uint64_t most = uint64_t{extent.units} * index.unit_bytes;
  const bool sizes_ok =
      extent.units > 0 && extent.logical_bytes <= most &&
      extent.logical_bytes > most - index.unit_bytes &&
      (extent.is_compressed()
           ? extent.stored_bytes > 0 && extent.stored_bytes < extent.logical_bytes &&
                 extent.logical_bytes <= kMaxExtentBytes
           : extent.stored_bytes == extent.logical_bytes && extent.checksum.IsZero());
  const uint64_t previous_end = index.extents.empty() ? 0 : index.extents.back().end();
  // The sizes are checked first, so that the computation of the end cannot overflow.
  if (sizes_ok && extent.offset >= previous_end && extent.offset % kPackAlign == 0 &&
      extent.offset <= index.body_bytes &&
      index.body_bytes - extent.offset >= extent.padded_bytes()) {
    return {};
  }
  return DamagedPack(
      what, fmt::format("its index has an invalid extent: {} units of {} bytes, stored in {} bytes "
                        "at byte {}",
                        extent.units, extent.logical_bytes, extent.stored_bytes, extent.offset));
}

}  // namespace

tl::unexpected<Error> DamagedPack(const std::string& what, const std::string& how) {
  return Fail(Code::kDataLoss, Domain::kImage, 0, fmt::format("{} is damaged: {}", what, how),
              kOtherCopyHint);
}

void PackIndex::Add(const Extent& extent, std::span<const PackUnit> extent_units) {
  assert(extent.units == extent_units.size());
  assert(extents.empty() || extents.back().end() <= extent.offset);
  Extent* last = extents.empty() ? nullptr : &extents.back();
  if (last != nullptr && !last->is_compressed() && !extent.is_compressed() &&
      last->offset + last->stored_bytes == extent.offset && last->logical_bytes % unit_bytes == 0) {
    last->stored_bytes += extent.stored_bytes;
    last->logical_bytes += extent.logical_bytes;
    last->units += extent.units;
  } else {
    extents.push_back(extent);
    extents.back().first = static_cast<uint32_t>(units.size());
  }
  units.insert(units.end(), extent_units.begin(), extent_units.end());
}

const Extent& PackIndex::ExtentOf(uint32_t unit) const {
  assert(unit < units.size());
  auto behind =
      std::upper_bound(extents.begin(), extents.end(), unit,
                       [](uint32_t number, const Extent& extent) { return number < extent.first; });
  return *(behind - 1);
}

uint64_t PackIndex::BytesOf(const Extent& extent, uint32_t first, uint32_t count) const {
  assert(first >= extent.first && first - extent.first + count <= extent.units);
  const uint64_t begin = uint64_t{first - extent.first} * unit_bytes;
  return std::min(uint64_t{count} * unit_bytes, extent.logical_bytes - begin);
}

Result<Id128> WritePackIndex(int fd, const std::string& path, const PackIndex& index) {
  assert(index.body_bytes % kPackAlign == 0 && index.units.size() <= kMaxPackUnits);
  return Annotate(WithSpaceHint(WriteTail(fd, index), path), "write pack " + path);
}

Result<PackIndex> ReadPackIndex(int fd, uint64_t size_bytes, const std::string& what) {
  STASIS_ASSIGN(Footer footer, ReadFooter(fd, size_bytes, what));
  PackIndex& index = footer.index;
  ChecksumStream checksum;
  uint64_t offset = index.body_bytes;
  uint64_t units = 0;
  Status broken;  // of the first invalid entry; a wrong checksum takes precedence
  index.extents.reserve(footer.extents);
  STASIS_TRY(ForEachEntry(fd, what, offset, footer.extents, kExtentEntryBytes, checksum,
                          [&](std::string_view entry) {
                            if (!broken) return;
                            Extent extent;
                            extent.offset = NumberAt<uint64_t>(entry, 0);
                            extent.stored_bytes = NumberAt<uint64_t>(entry, 8);
                            extent.logical_bytes = NumberAt<uint64_t>(entry, 16);
                            extent.units = NumberAt<uint32_t>(entry, 24);
                            extent.codec = static_cast<Codec>(NumberAt<uint32_t>(entry, 28));
                            extent.checksum = Id128::FromRaw(entry.data() + 32);
                            extent.first = static_cast<uint32_t>(units);
                            broken = CheckExtent(index, extent, what);
                            units += extent.units;  // cannot overflow: at most 2^24 extents
                            if (units <= footer.units) index.extents.push_back(extent);
                          }));
  if (broken && units != footer.units) {
    broken = DamagedPack(what, "the units of its extents do not add up to those of its index");
  }
  index.units.reserve(footer.units);
  STASIS_TRY(ForEachEntry(fd, what, offset, footer.units, kUnitEntryBytes, checksum,
                          [&](std::string_view entry) {
                            PackUnit unit;
                            unit.name = Id128::FromRaw(entry.data());
                            unit.checksum = Id128::FromRaw(entry.data() + Id128::kBytes);
                            if (broken && unit.name.IsZero()) {
                              broken = DamagedPack(what, "its index has a unit without a name");
                            }
                            index.units.push_back(unit);
                          }));
  if (checksum.Finish() != index.checksum)
    return DamagedPack(what, "the checksum of its index is wrong");
  STASIS_TRY(std::move(broken));
  return std::move(index);
}

}  // namespace stasis::store
