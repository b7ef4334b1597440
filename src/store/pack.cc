#include "store/pack.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/checksum.h"
#include "base/file.h"
#include "store/thread_buffer.h"

namespace stasis::store {

namespace {

// While a pack is written, its file may be longer than its data by up to this size.
constexpr uint64_t kReserve = 16ull << 20;

uint64_t AlignUp(uint64_t value) { return (value + kPackAlign - 1) / kPackAlign * kPackAlign; }

}  // namespace

PackWriter::PackWriter(UniqueFd fd, std::string path, const Id128& id, uint32_t unit_bytes)
    : file_(std::move(fd), std::move(path)) {
  index_.id = id;
  index_.unit_bytes = unit_bytes;
}

// Pads data to a multiple of 4096 bytes with zeros. Nearly all data is aligned already and is
// written without a copy.
Status PackWriter::WritePadded(std::string_view data, uint64_t offset) const {
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(data.data()) % kPackAlign == 0 && data.size() % kPackAlign == 0;
  assert(offset % kPackAlign == 0);
  if (!is_aligned) {
    const size_t padded = AlignUp(data.size());
    assert(padded <= kMaxExtentBytes);
    thread_local ThreadBuffer<kMaxExtentBytes> buffer;
    std::memcpy(buffer.data(), data.data(), data.size());
    std::memset(buffer.data() + data.size(), 0, padded - data.size());
    data = {buffer.data(), padded};
  }
  return file_.WriteAt(data, offset);
}

// Reserves space for the next extents. A direct write that extends the file would block the other
// threads, and tmpfs allocates many pages at once faster than single ones. Errors are ignored,
// because a write to a full disk reports them. The caller must hold the mutex.
void PackWriter::Reserve() {
  if (index_.body_bytes <= reserved_) return;
  const uint64_t begin = reserved_;
  while (reserved_ < index_.body_bytes) reserved_ += kReserve;
  (void)::fallocate(file_.fd(), 0, static_cast<off_t>(begin),
                    static_cast<off_t>(reserved_ - begin));
}

Result<uint32_t> PackWriter::Append(std::span<const PackUnit> units, std::string_view stored,
                                    uint64_t logical_bytes, Codec codec) {
  Extent extent;
  extent.stored_bytes = stored.size();
  extent.logical_bytes = logical_bytes;
  extent.units = static_cast<uint32_t>(units.size());
  extent.codec = codec;
  if (extent.is_compressed()) extent.checksum = Checksum(stored);
  const uint64_t most = units.size() * uint64_t{index_.unit_bytes};
  const bool sizes_ok =
      extent.is_compressed() ? stored.size() < logical_bytes : stored.size() == logical_bytes;
  if (stored.empty() || logical_bytes > std::min<uint64_t>(most, kMaxExtentBytes) ||
      most - logical_bytes >= index_.unit_bytes || !sizes_ok ||
      std::any_of(units.begin(), units.end(), [](const auto& u) { return u.name.IsZero(); })) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("{} units of {} bytes cannot be stored in {} bytes", units.size(),
                            logical_bytes, stored.size()));
  }
  uint32_t first = 0;
  {
    std::lock_guard lock(mutex_);
    if (index_.units.size() + units.size() > kMaxPackUnits) {
      return Fail(Code::kResourceExhausted, Domain::kImage, 0, "the pack is full");
    }
    first = static_cast<uint32_t>(index_.units.size());
    extent.offset = index_.body_bytes;
    index_.body_bytes += extent.padded_bytes();
    stored_ += stored.size();
    index_.Add(extent, units);
    if (stored.size() >= DirectFile::kLeastBytes) Reserve();
  }
  // The extent's place in the file is reserved, so other threads need not wait for this write.
  STASIS_TRY(WritePadded(stored, extent.offset));
  return first;
}

Status PackWriter::Finish() {
  STASIS_TRY(WritePackIndex(file_.fd(), file_.path(), index_));
  return {};
}

Result<PackReader> PackReader::Open(OpenedFile file, const std::string& what) {
  STASIS_ASSIGN(PackIndex index, ReadPackIndex(file.fd.get(), file.size_bytes, what));
  return PackReader(std::move(file), what, std::make_shared<const PackIndex>(std::move(index)));
}

Status PackReader::ReadCompressed(const Extent& extent, char* out) const {
  assert(extent.is_compressed() && extent.padded_bytes() <= kMaxExtentBytes);
  thread_local ThreadBuffer<kMaxExtentBytes> buffer;
  STASIS_TRY(Annotate(PreadAll(fd(), buffer.data(), extent.padded_bytes(), extent.offset), what_));
  const std::string_view read(buffer.data(), extent.padded_bytes());
  const std::string_view stored = read.substr(0, extent.stored_bytes);
  if (Checksum(stored) != extent.checksum) {
    return DamagedPack(
        what_,
        fmt::format("the extent at byte {} does not have the recorded checksum", extent.offset));
  }
  STASIS_TRY(CheckPadding(extent, read.substr(extent.stored_bytes)));
  auto status = Decompress(extent.codec, stored, out, extent.logical_bytes);
  if (status || status.error().code != Code::kDataLoss) return status;
  return DamagedPack(
      what_, fmt::format("the extent at byte {}: {}", extent.offset, status.error().message));
}

Status PackReader::CheckUnit(uint32_t unit, std::string_view data) const {
  const Id128 found = Checksum(data);
  const Id128& recorded = index_->units[unit].checksum;
  if (found == recorded) return {};
  return DamagedPack(what_, fmt::format("unit {} has checksum {} instead of {}", unit, found.Hex(),
                                        recorded.Hex()));
}

Status PackReader::CheckPadding(const Extent& extent, std::string_view padding) const {
  if (std::all_of(padding.begin(), padding.end(), [](char c) { return c == 0; })) return {};
  return DamagedPack(
      what_, fmt::format("the padding of the extent at byte {} is not zero", extent.offset));
}

}  // namespace stasis::store
