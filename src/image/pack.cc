#include "image/pack.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/file.h"
#include "image/checksum.h"
#include "image/little_endian.h"
#include "image/store_folder.h"

namespace stasis::image {

namespace {

constexpr std::string_view kHeaderMagic = "\x89STPACK\n";
constexpr std::string_view kFooterMagic = "\x89STPEND\n";
constexpr size_t kHeaderBytes = kPackAlign;
constexpr size_t kEntryBytes = 64;
constexpr size_t kFooterBytes = 64;

uint64_t AlignUp(uint64_t value) { return (value + kPackAlign - 1) / kPackAlign * kPackAlign; }

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

}  // namespace

Result<PackWriter> PackWriter::Begin(UniqueFd fd, std::string path) {
  PackWriter writer(std::move(fd), std::move(path));
  STASIS_ASSIGN(Id128 id, Id128::Random());
  std::string header(kHeaderMagic);
  AppendNumber<uint32_t>(header, kPackVersion);
  AppendNumber<uint32_t>(header, kHeaderBytes);
  AppendNumber<uint64_t>(header, 0);  // features
  header += id.View();
  header.resize(kHeaderBytes - Id128::kBytes);
  header += Checksum(header).View();
  STASIS_TRY(writer.WritePadded(header));
  return writer;
}

// One write call a block, so that an interrupted one is rare and padding costs no call of its own.
Status PackWriter::WritePadded(std::string_view data) {
  scratch_.assign(data);
  scratch_.resize(AlignUp(data.size()));
  return Write(scratch_);
}

Status PackWriter::Write(std::string_view data) {
  if (auto status = WriteAll(fd_.get(), data); !status) {
    return Fail(WithSpaceHint(std::move(status.error()), path_).WithContext("write pack " + path_));
  }
  offset_ += data.size();
  return {};
}

Status PackWriter::Append(const Id128& name, std::string_view block) {
  if (name.IsZero() || block.empty() || block.size() > kBlockBytes) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("a block {} of {} bytes cannot be stored", name.Hex(), block.size()));
  }
  if (entries_.size() >= kMaxPackBlocks) {
    return Fail(Code::kResourceExhausted, Domain::kImage, 0, "the pack is full");
  }
  auto size = static_cast<uint32_t>(block.size());
  PackEntry entry{name, offset_, size, size, Codec::kNone, Checksum(block)};
  auto [at, is_new] = by_name_.emplace(name, entries_.size());
  if (!is_new) {
    const PackEntry& first = entries_[at->second];
    if (first.checksum == entry.checksum && first.logical_bytes == size) return {};
    return Fail(Code::kInternal, Domain::kImage, 0,
                "two different blocks have one name, " + name.Hex(),
                "This has a chance below 2^-38; it is far more likely a mistake in naming them.");
  }
  STASIS_TRY(WritePadded(block));
  entries_.push_back(entry);
  return {};
}

Status PackWriter::Finish() {
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
  return Write(tail);
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
  if (version != kPackVersion || features != 0) {
    return Fail(Code::kUnimplemented, Domain::kImage, version,
                fmt::format("{} has pack format {} with features {:#x}; this Stasis reads 1 "
                            "without any",
                            what_, version, features),
                "Use a newer Stasis.");
  }
  if (NumberAt<uint32_t>(header, 12) != kHeaderBytes)
    return Damaged("its header has a wrong length");
  return {};
}

Status PackReader::ReadIndex() {
  std::string footer(kFooterBytes, '\0');
  uint64_t footer_offset = file_.size_bytes - kFooterBytes;
  STASIS_TRY(PreadAll(file_.fd.get(), footer.data(), footer.size(), footer_offset));
  std::string_view sealed(footer.data(), kFooterBytes - Id128::kBytes);
  if (sealed.substr(0, kFooterMagic.size()) != kFooterMagic ||
      Checksum(sealed) != Id128::FromRaw(footer.data() + sealed.size()) ||
      NumberAt<uint32_t>(footer, 8) != kPackVersion ||
      NumberAt<uint32_t>(footer, 12) != kFooterBytes) {
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
  if (Checksum(index) != Id128::FromRaw(footer.data() + 32)) {
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
  if (entry.codec != Codec::kNone) {
    return Fail(Code::kUnimplemented, Domain::kImage, static_cast<int64_t>(entry.codec),
                fmt::format("{}: block {} is stored with codec {}, which this Stasis does not know",
                            what_, entry.name.Hex(), static_cast<uint32_t>(entry.codec)),
                "Use a newer Stasis.");
  }
  bool sizes_ok = entry.stored_bytes > 0 && entry.stored_bytes <= kBlockBytes &&
                  entry.logical_bytes == entry.stored_bytes;
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

Status PackReader::Read(const PackEntry& entry, void* out) const {
  STASIS_TRY(Annotate(PreadAll(file_.fd.get(), out, entry.stored_bytes, entry.offset), what_));
  Id128 found = Checksum({static_cast<const char*>(out), entry.stored_bytes});
  if (found == entry.checksum) return {};
  return Damaged(fmt::format("block {} at byte {} has checksum {}, recorded is {}",
                             entry.name.Hex(), entry.offset, found.Hex(), entry.checksum.Hex()));
}

}  // namespace stasis::image
