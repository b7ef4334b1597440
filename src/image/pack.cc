#include "image/pack.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "image/checksum.h"
#include "image/image_folder.h"
#include "image/little_endian.h"

namespace stasis::image {

namespace {

constexpr std::string_view kHeaderMagic = "\x89STPACK\n";
constexpr std::string_view kFooterMagic = "\x89STPEND\n";
constexpr size_t kHeaderBytes = kPackAlign;
constexpr size_t kEntryBytes = 64;
constexpr size_t kFooterBytes = 64;

uint64_t AlignUp(uint64_t value) { return (value + kPackAlign - 1) / kPackAlign * kPackAlign; }

// Several packs are written at a time, and each may have so much more for a while than it needs.
constexpr uint64_t kReserve = 16ull << 20;

std::string EncodeEntry(const PackEntry& entry) {
  std::string raw;
  raw += entry.name.View();
  AppendNumber<uint64_t>(raw, entry.offset);
  AppendNumber<uint32_t>(raw, entry.stored_bytes);
  AppendNumber<uint32_t>(raw, entry.logical_bytes);
  AppendNumber<uint32_t>(raw, static_cast<uint32_t>(entry.codec));
  raw.append(12, '\0');
  raw += entry.checksum.View();
  return raw;
}

PackEntry DecodeEntry(std::string_view raw) {
  PackEntry entry;
  entry.name = Id128::FromRaw(raw.data());
  entry.offset = NumberAt<uint64_t>(raw, 16);
  entry.stored_bytes = NumberAt<uint32_t>(raw, 24);
  entry.logical_bytes = NumberAt<uint32_t>(raw, 28);
  entry.codec = static_cast<Codec>(NumberAt<uint32_t>(raw, 32));
  entry.checksum = Id128::FromRaw(raw.data() + 48);
  return entry;
}

// A block's room, aligned for direct writes; this thread's own.
char* PaddedBuffer() {
  struct Freer {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<void, Freer> buffer(std::aligned_alloc(kPackAlign, kBlockBytes));
  return static_cast<char*>(buffer.get());
}

// A buffer of this thread's own, for blocks that are not read to where they belong.
char* Scratch() {
  thread_local std::vector<char> buffer(kBlockBytes);
  return buffer.data();
}

}  // namespace

Result<PackWriter> PackWriter::Begin(UniqueFd fd, std::string path, const Id128& id) {
  PackWriter writer(std::move(fd), std::move(path), id);
  std::string header(kHeaderMagic);
  AppendNumber<uint32_t>(header, kPackVersion);
  AppendNumber<uint32_t>(header, kHeaderBytes);
  AppendNumber<uint64_t>(header, 0);  // features
  header += id.View();
  header.resize(kHeaderBytes - Id128::kBytes);
  header += Checksum(header).View();
  STASIS_TRY(writer.WritePadded(header, 0));
  writer.offset_ = kHeaderBytes;
  return writer;
}

// Whole blocks, which is what nearly all are, are written from where they lie: past the page cache,
// which would only be filled with what nobody reads soon, and copied to by one thread at a time.
Status PackWriter::WritePadded(std::string_view data, uint64_t offset) const {
  bool is_aligned =
      reinterpret_cast<uintptr_t>(data.data()) % kPackAlign == 0 && data.size() % kPackAlign == 0;
  assert(offset % kPackAlign == 0);
  if (!is_aligned) {
    size_t padded = AlignUp(data.size());
    assert(padded <= kBlockBytes);
    char* copy = PaddedBuffer();
    std::memcpy(copy, data.data(), data.size());
    std::memset(copy + data.size(), 0, padded - data.size());
    data = {copy, padded};
  }
  return file_.WriteAt(data, offset);
}

// Room for the next blocks, under the mutex: a direct write that makes a file longer would keep the
// others out, and a tmpfs finds many pages at once more quickly than one by one. Where it cannot be
// had, full disk or not, the writes themselves will tell.
void PackWriter::Reserve() {
  if (offset_ <= reserved_) return;
  uint64_t begin = std::max<uint64_t>(reserved_, kHeaderBytes);
  while (reserved_ < offset_) reserved_ = std::max<uint64_t>(reserved_, kHeaderBytes) + kReserve;
  (void)::fallocate(file_.fd(), 0, static_cast<off_t>(begin),
                    static_cast<off_t>(reserved_ - begin));
}

Status PackWriter::Append(const Id128& name, std::string_view stored, size_t logical_bytes,
                          Codec codec) {
  bool sizes_ok =
      codec == Codec::kNone ? stored.size() == logical_bytes : stored.size() < logical_bytes;
  if (name.IsZero() || stored.empty() || logical_bytes > kBlockBytes || !sizes_ok) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("a block {} of {} bytes in {} cannot be stored", name.Hex(),
                            logical_bytes, stored.size()));
  }
  PackEntry entry{name,
                  0,
                  static_cast<uint32_t>(stored.size()),
                  static_cast<uint32_t>(logical_bytes),
                  codec,
                  Checksum(stored)};
  {
    std::lock_guard lock(*mutex_);
    if (entries_.size() >= kMaxPackBlocks) {
      return Fail(Code::kResourceExhausted, Domain::kImage, 0, "the pack is full");
    }
    auto [at, is_new] = by_name_.emplace(name, entries_.size());
    if (!is_new) {
      const PackEntry& first = entries_[at->second];
      bool comparable = first.codec == codec;
      if (first.logical_bytes == logical_bytes &&
          (!comparable || first.checksum == entry.checksum)) {
        return {};
      }
      return Fail(Code::kInternal, Domain::kImage, 0,
                  "two different blocks have one name, " + name.Hex(),
                  "This has a chance below 2^-38; it is far more likely a mistake in naming them.");
    }
    assert(offset_ >= kHeaderBytes && offset_ % kPackAlign == 0);
    entry.offset = offset_;
    offset_ += entry.padded_bytes();
    stored_ += entry.stored_bytes;
    entries_.push_back(entry);
    if (stored.size() >= DirectFile::kLeastBytes) Reserve();
  }
  // Its place is taken; the others need not wait until it is written.
  return WritePadded(stored, entry.offset);
}

Status PackWriter::Finish() {
  assert(by_name_.size() == entries_.size());
  std::string tail;
  tail.reserve(entries_.size() * kEntryBytes + kFooterBytes);
  for (const PackEntry& entry : entries_) tail += EncodeEntry(entry);
  Id128 index_checksum = Checksum(tail);

  std::string footer(kFooterMagic);
  AppendNumber<uint32_t>(footer, kPackVersion);
  AppendNumber<uint32_t>(footer, kFooterBytes);
  AppendNumber<uint64_t>(footer, offset_);
  AppendNumber<uint64_t>(footer, entries_.size());
  footer += index_checksum.View();
  footer += Checksum(footer).View();
  tail += footer;
  STASIS_TRY(file_.WriteAt(tail, offset_));
  offset_ += tail.size();
  if (reserved_ <= offset_ || ::ftruncate(file_.fd(), static_cast<off_t>(offset_)) == 0) return {};
  return FailErrno(errno, "shorten pack " + file_.path());
}

Result<PackReader> PackReader::Open(OpenedFile file, const std::string& what) {
  PackReader reader(std::move(file), what);
  STASIS_TRY(reader.ReadHeader());
  STASIS_TRY(reader.ReadIndex());
  return reader;
}

tl::unexpected<Error> PackReader::Damaged(const std::string& how) const {
  return Fail(Code::kDataLoss, Domain::kImage, 0, fmt::format("{} is damaged: {}", what_, how),
              "Take another copy of the image, or an older checkpoint.");
}

Status PackReader::ReadHeader() {
  if (file_.size_bytes < kHeaderBytes + kFooterBytes) {
    return Damaged(fmt::format("{} bytes are too few for a pack", file_.size_bytes));
  }
  std::string header(kHeaderBytes, '\0');
  STASIS_TRY(PreadAll(file_.fd.get(), header.data(), header.size(), 0));
  std::string_view sealed(header.data(), kHeaderBytes - Id128::kBytes);
  if (sealed.substr(0, kHeaderMagic.size()) != kHeaderMagic) {
    return Damaged("it does not begin as a pack does");
  }
  if (Checksum(sealed) != Id128::FromRaw(header.data() + sealed.size())) {
    return Damaged("its header's checksum is wrong");
  }
  auto version = NumberAt<uint32_t>(header, 8);
  auto features = NumberAt<uint64_t>(header, 16);
  if (version < kOldestPackVersion || version > kPackVersion || features != 0) {
    return Fail(Code::kUnimplemented, Domain::kImage, version,
                fmt::format("{} has pack format {} with features {:#x}; this Stasis reads {} to {} "
                            "without any",
                            what_, version, features, kOldestPackVersion, kPackVersion),
                "Use a newer Stasis.");
  }
  if (NumberAt<uint32_t>(header, 12) != kHeaderBytes)
    return Damaged("its header has a wrong length");
  version_ = version;
  id_ = Id128::FromRaw(header.data() + 24);
  return {};
}

Status PackReader::ReadIndex() {
  std::string footer(kFooterBytes, '\0');
  uint64_t footer_offset = file_.size_bytes - kFooterBytes;
  STASIS_TRY(PreadAll(file_.fd.get(), footer.data(), footer.size(), footer_offset));
  std::string_view sealed(footer.data(), kFooterBytes - Id128::kBytes);
  if (sealed.substr(0, kFooterMagic.size()) != kFooterMagic ||
      Checksum(sealed) != Id128::FromRaw(footer.data() + sealed.size()) ||
      NumberAt<uint32_t>(footer, 8) != version_ || NumberAt<uint32_t>(footer, 12) != kFooterBytes) {
    return Damaged("its end is not that of a pack");
  }
  auto index_offset = NumberAt<uint64_t>(footer, 16);
  auto count = NumberAt<uint64_t>(footer, 24);
  // The count before any multiplication with it: what fits below is bounded by the file's own size.
  if (count > kMaxPackBlocks || index_offset < kHeaderBytes || index_offset % kPackAlign != 0 ||
      index_offset > footer_offset || footer_offset - index_offset != count * kEntryBytes) {
    return Damaged(
        fmt::format("its footer places {} entries at byte {}, which does not fit {} bytes", count,
                    index_offset, file_.size_bytes));
  }
  std::string index(count * kEntryBytes, '\0');
  STASIS_TRY(PreadAll(file_.fd.get(), index.data(), index.size(), index_offset));
  index_checksum_ = Id128::FromRaw(footer.data() + 32);
  if (Checksum(index) != index_checksum_) {
    return Damaged("its index's checksum is wrong");
  }
  entries_.reserve(count);
  by_name_.reserve(count);
  uint64_t end = kHeaderBytes;
  for (uint64_t i = 0; i < count; ++i) {
    PackEntry entry = DecodeEntry(std::string_view(index).substr(i * kEntryBytes, kEntryBytes));
    STASIS_TRY(CheckEntry(entry, end, index_offset));
    if (!by_name_.emplace(entry.name, entries_.size()).second) {
      return Damaged("block " + entry.name.Hex() + " is listed twice");
    }
    end = entry.offset + AlignUp(entry.stored_bytes);
    entries_.push_back(entry);
  }
  if (end != index_offset) return Damaged("its blocks do not end where its index begins");
  return {};
}

Status PackReader::CheckEntry(const PackEntry& entry, uint64_t previous_end,
                              uint64_t index_offset) const {
  if (static_cast<uint32_t>(entry.codec) > (version_ == 1 ? 0 : kLastCodec)) {
    return Fail(Code::kUnimplemented, Domain::kImage, static_cast<int64_t>(entry.codec),
                fmt::format("{}: block {} is stored with codec {}, which this Stasis does not know",
                            what_, entry.name.Hex(), static_cast<uint32_t>(entry.codec)),
                "Use a newer Stasis.");
  }
  bool sizes_ok = entry.stored_bytes > 0 && entry.stored_bytes <= kBlockBytes &&
                  (entry.codec == Codec::kNone ? entry.logical_bytes == entry.stored_bytes
                                               : entry.logical_bytes > entry.stored_bytes &&
                                                     entry.logical_bytes <= kBlockBytes);
  // Blocks lie one behind the other, in the order of the index, without holes.
  bool place_ok = entry.offset == previous_end && entry.offset <= index_offset &&
                  index_offset - entry.offset >= entry.stored_bytes;
  if (!sizes_ok || !place_ok || entry.name.IsZero()) {
    return Damaged(fmt::format("its index lists block {} of {} ({}) bytes at byte {}",
                               entry.name.Hex(), entry.stored_bytes, entry.logical_bytes,
                               entry.offset));
  }
  return {};
}

const PackEntry* PackReader::Find(const Id128& name) const {
  auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &entries_[at->second];
}

Status PackReader::CheckStored(const PackEntry& entry, std::string_view stored) const {
  Id128 found = Checksum(stored);
  if (found == entry.checksum) return {};
  return Damaged(fmt::format("block {} at byte {} has checksum {}, recorded is {}",
                             entry.name.Hex(), entry.offset, found.Hex(), entry.checksum.Hex()));
}

Status PackReader::Decompressed(const PackEntry& entry, std::string_view stored, void* out) const {
  auto status = Decompress(entry.codec, stored, out, entry.logical_bytes);
  if (status || status.error().code != Code::kDataLoss) return status;
  return Damaged(fmt::format("block {} at byte {}: {}", entry.name.Hex(), entry.offset,
                             status.error().message));
}

Status PackReader::Read(const PackEntry& entry, void* out) const {
  assert(entry.padded_bytes() <= kBlockBytes && entry.logical_bytes <= kBlockBytes);
  const bool in_place = entry.codec == Codec::kNone && entry.stored_bytes == entry.padded_bytes();
  char* to = in_place ? static_cast<char*>(out) : Scratch();
  STASIS_TRY(Annotate(PreadAll(file_.fd.get(), to, entry.padded_bytes(), entry.offset), what_));
  std::string_view stored(to, entry.stored_bytes);
  STASIS_TRY(CheckStored(entry, stored));
  auto is_zero = [](char c) { return c == 0; };
  if (!std::all_of(to + entry.stored_bytes, to + entry.padded_bytes(), is_zero)) {
    return Damaged(fmt::format("there is something between block {} and the next at byte {}",
                               entry.name.Hex(), entry.offset + entry.padded_bytes()));
  }
  if (in_place) return {};
  if (entry.codec != Codec::kNone) return Decompressed(entry, stored, out);
  std::memcpy(out, to, entry.stored_bytes);
  return {};
}

Status PackReader::Check(const PackEntry& entry) const {
  thread_local std::vector<char> out(kBlockBytes);
  return Read(entry, out.data());
}

// One walk along the file for all blocks: where the next hole is, is found by walking there, on
// tmpfs page by page.
bool PackReader::AnyIsHole(std::vector<const PackEntry*> entries) const {
  std::sort(entries.begin(), entries.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  auto next = entries.begin();
  while (next != entries.end()) {
    off_t begin = ::lseek(file_.fd.get(), static_cast<off_t>((*next)->offset), SEEK_HOLE);
    if (begin < 0) return false;  // what has no holes may say so
    const auto hole = static_cast<uint64_t>(begin);
    if (hole >= file_.size_bytes) return false;
    next = std::find_if(next, entries.end(), [&](const PackEntry* entry) {
      return entry->offset + entry->stored_bytes > hole;
    });
    if (next == entries.end()) return false;
    off_t end = ::lseek(file_.fd.get(), begin, SEEK_DATA);
    if (end < 0 || (*next)->offset < static_cast<uint64_t>(end)) return true;
  }
  return false;
}

}  // namespace stasis::image
