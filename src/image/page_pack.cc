#include "image/page_pack.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "image/checksum.h"
#include "image/image_folder.h"
#include "image/little_endian.h"

namespace stasis::image {

namespace {

constexpr std::string_view kFooterMagic = "\x89STPAGE\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kExtentEntryBytes = 48;
constexpr size_t kPageEntryBytes = 32;
constexpr size_t kFooterBytes = 96;

constexpr size_t kWriteBytes = 4 << 20;

// Text that is written to a file piece by piece, and its checksum.
class Tail {
 public:
  Tail(int fd, uint64_t offset) : fd_(fd), offset_(offset) {}
  uint64_t offset() const { return offset_; }
  std::string& text() { return text_; }
  Status FlushIfFull() { return text_.size() < kWriteBytes ? Status{} : Flush(); }
  Status Flush() {
    checksum_.Update(text_);
    std::string_view rest = text_;
    while (!rest.empty()) {
      ssize_t n =
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

void Append(std::string& to, const PageExtent& extent) {
  AppendNumber<uint64_t>(to, extent.offset);
  AppendNumber<uint64_t>(to, extent.stored_bytes);
  AppendNumber<uint32_t>(to, extent.pages);
  AppendNumber<uint32_t>(to, static_cast<uint32_t>(extent.codec));
  AppendNumber<uint64_t>(to, 0);
  to += extent.checksum.View();
}

Result<Id128> WriteTail(int fd, const Id128& id, uint64_t body_bytes, const PageIndex& index) {
  Tail tail(fd, body_bytes);
  for (const PageExtent& extent : index.extents) {
    Append(tail.text(), extent);
    STASIS_TRY(tail.FlushIfFull());
  }
  for (const PackPage& page : index.pages) {
    tail.text() += page.name.View();
    tail.text() += page.checksum.View();
    STASIS_TRY(tail.FlushIfFull());
  }
  STASIS_TRY(tail.Flush());
  const Id128 index_checksum = tail.checksum();

  std::string& footer = tail.text();
  footer = kFooterMagic;
  AppendNumber<uint32_t>(footer, kVersion);
  AppendNumber<uint32_t>(footer, kFooterBytes);
  AppendNumber<uint64_t>(footer, 0);  // features
  footer += id.View();
  AppendNumber<uint64_t>(footer, body_bytes);
  AppendNumber<uint64_t>(footer, index.extents.size());
  AppendNumber<uint64_t>(footer, index.pages.size());
  footer += index_checksum.View();
  footer += Checksum(footer).View();
  STASIS_TRY(tail.Flush());
  if (::ftruncate(fd, static_cast<off_t>(tail.offset())) != 0) return FailErrno(errno, "shorten");
  return index_checksum;
}

}  // namespace

Result<Id128> FinishPagePack(int fd, const std::string& path, const Id128& id, uint64_t body_bytes,
                             const PageIndex& index) {
  auto written = WriteTail(fd, id, body_bytes, index);
  if (written) return written;
  return Fail(WithSpaceHint(std::move(written).error(), path).WithContext("write pack " + path));
}

Result<PagePackReader> PagePackReader::Open(OpenedFile file, const std::string& what) {
  PagePackReader reader(std::move(file), what);
  STASIS_TRY(reader.ReadIndex());
  return reader;
}

tl::unexpected<Error> PagePackReader::Damaged(const std::string& how) const {
  return Fail(Code::kDataLoss, Domain::kImage, 0, fmt::format("{} is damaged: {}", what_, how),
              "Take another copy of the image, or an older checkpoint.");
}

Status PagePackReader::ReadIndex() {
  const uint64_t size = file_.size_bytes;
  if (size < kFooterBytes) return Damaged(fmt::format("{} bytes are too few for a pack", size));
  std::string footer(kFooterBytes, '\0');
  STASIS_TRY(PreadAll(fd(), footer.data(), footer.size(), size - kFooterBytes));
  const std::string_view sealed(footer.data(), kFooterBytes - Id128::kBytes);
  if (sealed.substr(0, kFooterMagic.size()) != kFooterMagic ||
      Checksum(sealed) != Id128::FromRaw(footer.data() + sealed.size())) {
    return Damaged("its end is not that of a pack of pages");
  }
  const auto version = NumberAt<uint32_t>(footer, 8);
  const auto features = NumberAt<uint64_t>(footer, 16);
  if (version != kVersion || features != 0) {
    return Fail(Code::kUnimplemented, Domain::kImage, version,
                fmt::format("{} has page pack format {} with features {:#x}; this Stasis reads {} "
                            "without any",
                            what_, version, features, kVersion),
                "Use a newer Stasis.");
  }
  id_ = Id128::FromRaw(footer.data() + 24);
  body_bytes_ = NumberAt<uint64_t>(footer, 40);
  const auto extents = NumberAt<uint64_t>(footer, 48);
  const auto pages = NumberAt<uint64_t>(footer, 56);
  // Before any multiplication with them.
  const bool bounded = extents <= kMaxPackPages && pages <= kMaxPackPages && body_bytes_ <= size;
  const uint64_t index_bytes = bounded ? extents * kExtentEntryBytes + pages * kPageEntryBytes : 0;
  if (!bounded || NumberAt<uint32_t>(footer, 12) != kFooterBytes || body_bytes_ % kPackAlign != 0 ||
      size - body_bytes_ != index_bytes + kFooterBytes) {
    return Damaged("its end does not fit to its length");
  }
  std::string raw(index_bytes, '\0');
  STASIS_TRY(PreadAll(fd(), raw.data(), raw.size(), body_bytes_));
  index_checksum_ = Checksum(raw);
  if (index_checksum_ != Id128::FromRaw(footer.data() + 64)) {
    return Damaged("its index's checksum is wrong");
  }
  uint64_t first = 0;
  index_.extents.reserve(extents);
  for (uint64_t i = 0; i < extents; ++i) {
    const std::string_view entry(raw.data() + i * kExtentEntryBytes, kExtentEntryBytes);
    PageExtent extent;
    extent.offset = NumberAt<uint64_t>(entry, 0);
    extent.stored_bytes = NumberAt<uint64_t>(entry, 8);
    extent.pages = NumberAt<uint32_t>(entry, 16);
    extent.codec = static_cast<Codec>(NumberAt<uint32_t>(entry, 20));
    extent.checksum = Id128::FromRaw(entry.data() + 32);
    extent.first = static_cast<uint32_t>(first);
    STASIS_TRY(CheckExtent(extent, i == 0 ? 0 : index_.extents.back().end()));
    first += extent.pages;
    if (first > pages) break;
    index_.extents.push_back(extent);
  }
  if (first != pages) return Damaged("its index has another number of pages than its extents");
  index_.pages.resize(pages);
  const char* at = raw.data() + extents * kExtentEntryBytes;
  for (PackPage& page : index_.pages) {
    page.name = Id128::FromRaw(at);
    page.checksum = Id128::FromRaw(at + Id128::kBytes);
    at += kPageEntryBytes;
    if (page.name.IsZero()) return Damaged("its index has a page without a name");
  }
  return {};
}

Status PagePackReader::CheckExtent(const PageExtent& extent, uint64_t previous_end) const {
  if (static_cast<uint32_t>(extent.codec) > kLastCodec) {
    return Fail(Code::kUnimplemented, Domain::kImage, static_cast<int64_t>(extent.codec),
                fmt::format("{}: pages at byte {} are stored with codec {}, which this Stasis does "
                            "not know",
                            what_, extent.offset, static_cast<uint32_t>(extent.codec)),
                "Use a newer Stasis.");
  }
  const uint64_t logical = uint64_t{extent.pages} * kPageBytes;
  const bool sizes_ok =
      extent.pages > 0 &&
      (extent.codec == Codec::kNone ? extent.stored_bytes == logical
                                    : extent.stored_bytes > 0 && extent.stored_bytes < logical &&
                                          logical <= kMaxExtentBytes);
  const bool place_ok = extent.offset >= previous_end && extent.offset % kPackAlign == 0 &&
                        extent.offset <= body_bytes_ &&
                        body_bytes_ - extent.offset >= extent.padded_bytes();
  if (sizes_ok && place_ok) return {};
  return Damaged(fmt::format("its index lists {} pages in {} bytes at byte {}", extent.pages,
                             extent.stored_bytes, extent.offset));
}

const PageExtent& PagePackReader::ExtentOf(uint32_t page) const {
  auto behind = std::upper_bound(
      index_.extents.begin(), index_.extents.end(), page,
      [](uint32_t number, const PageExtent& extent) { return number < extent.first; });
  return *(behind - 1);
}

Status PagePackReader::ReadExtent(const PageExtent& extent, char* out) const {
  thread_local std::vector<char> buffer(kMaxExtentBytes);
  STASIS_TRY(Annotate(PreadAll(fd(), buffer.data(), extent.padded_bytes(), extent.offset), what_));
  const std::string_view stored(buffer.data(), extent.stored_bytes);
  if (Checksum(stored) != extent.checksum) {
    return Damaged(fmt::format("the pages at byte {} have another checksum", extent.offset));
  }
  const char* padding = buffer.data() + extent.stored_bytes;
  if (!std::all_of(padding, static_cast<const char*>(buffer.data()) + extent.padded_bytes(),
                   [](char c) { return c == 0; })) {
    return Damaged(fmt::format("there is something behind the pages at byte {}", extent.offset));
  }
  auto status = Decompress(extent.codec, stored, out, uint64_t{extent.pages} * kPageBytes);
  if (status || status.error().code != Code::kDataLoss) return status;
  return Damaged(fmt::format("pages at byte {}: {}", extent.offset, status.error().message));
}

Status PagePackReader::CheckPage(uint32_t page, const char* data) const {
  const Id128 found = Checksum({data, kPageBytes});
  const Id128& recorded = index_.pages[page].checksum;
  if (found == recorded) return {};
  return Damaged(
      fmt::format("page {} has checksum {}, recorded is {}", page, found.Hex(), recorded.Hex()));
}

}  // namespace stasis::image
