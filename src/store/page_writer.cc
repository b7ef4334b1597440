#include "store/page_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/descriptor_table.h"
#include "base/file.h"
#include "store/beneath.h"
#include "store/clock.h"
#include "store/image_folder.h"
#include "store/thread_buffer.h"
#include "store/unit_writer.h"

namespace stasis::store {

namespace {

using Kind = UnitWriter::Kind;

constexpr size_t kPieceBytes = 1 << 20;  // read and written at once
constexpr size_t kPiecePages = kPieceBytes / kPageBytes;
constexpr size_t kCompressedPages = 64;  // compressed together

// A file becomes a pack in place if it is large and at least three of four pages are new. A small
// file does not, because a later image can link only a limited number of packs.
constexpr uint64_t kLeastInPlace = 16 << 20;
constexpr size_t kMostlyNew = 4;

constexpr size_t kMaxRuns = 2'000'000;  // of one image, because the manifest contains them
// The indexes of earlier images are read until they list this many pages, plus four times the pages
// of the new image.
constexpr uint64_t kMoreToLookUp = 1 << 20;

char* PieceBuffer() {
  thread_local ThreadBuffer<kPieceBytes> buffer;
  return buffer.data();
}

// A file of pages that CRIU wrote, in its folder or in memory.
struct PageSource {
  std::string name;
  UniqueFd fd;                      // if the file is in the folder
  const char* in_memory = nullptr;  // otherwise
  uint64_t bytes = 0;
  uint32_t first = 0;  // position of its first page among those of all files
  uint32_t pages = 0;
  bool in_place = false;  // the file is to become a pack without a copy of its pages
  bool is_pack = false;   // the file is a pack
};

bool IsPagesFile(const std::string& name) {
  constexpr std::string_view kBegin = "pages-", kEnd = ".img";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  const std::string number =
      name.substr(kBegin.size(), name.size() - std::min(name.size(), kBegin.size() + kEnd.size()));
  return !number.empty() && number.find_first_not_of("0123456789") == number.npos;
}

// Returns the files of CRIU's folder whose size is a multiple of the page size.
Result<std::vector<PageSource>> OpenPageFiles(const ImageWriter& writer) {
  (void)RaiseDescriptorLimit();  // a program has a file for each process
  std::vector<PageSource> sources;
  STASIS_ASSIGN(auto entries, ListFolder(writer.cpu_dir_fd()));
  for (const Entry& entry : entries) {
    if (!entry.is_regular || !IsPagesFile(entry.name)) continue;
    PageSource source;
    source.name = entry.name;
    STASIS_ASSIGN(source.fd, OpenBeneath(writer.cpu_dir_fd(), entry.name, O_RDWR));
    struct stat st;
    if (::fstat(source.fd.get(), &st) != 0) return FailErrno(errno, "stat " + entry.name);
    const auto size = static_cast<uint64_t>(st.st_size);
    if (size == 0 || size % kPageBytes != 0) continue;
    source.bytes = size;
    sources.push_back(std::move(source));
  }
  return sources;
}

// Returns the files that can be split into pages; all others stay files of the image. If there are
// more pages than one pack can have, adds a note and returns no files.
Result<std::vector<PageSource>> OpenPageSources(const ImageWriter& writer,
                                                const std::vector<FileInMemory>& in_memory,
                                                std::vector<std::string>& notes) {
  STASIS_ASSIGN(std::vector<PageSource> sources, OpenPageFiles(writer));
  for (const FileInMemory& file : in_memory) {
    if (file.content.empty() || file.content.size() % kPageBytes != 0) continue;
    PageSource& source = sources.emplace_back();
    source.name = file.name;
    source.in_memory = file.content.data();
    source.bytes = file.content.size();
  }
  uint64_t pages = 0;
  for (PageSource& source : sources) {
    source.first = static_cast<uint32_t>(pages);
    source.pages = static_cast<uint32_t>(source.bytes / kPageBytes);
    pages += source.bytes / kPageBytes;
    if (pages <= kMaxPackUnits) continue;
    notes.push_back(fmt::format(
        "the program has more than {} GiB of CPU memory, so all of it is written, and none is "
        "shared with other images",
        kMaxPackUnits * kPageBytes >> 30));
    return std::vector<PageSource>{};
  }
  return sources;
}

// Writes the files in memory for which `wanted` is true to CRIU's folder.
Status WriteToFolder(const ImageWriter& writer, const std::vector<FileInMemory>& in_memory,
                     const std::function<bool(const FileInMemory&)>& wanted) {
  for (const FileInMemory& file : in_memory) {
    if (!wanted(file)) continue;
    STASIS_ASSIGN(UniqueFd fd,
                  OpenBeneath(writer.cpu_dir_fd(), file.name, O_WRONLY | O_CREAT | O_EXCL));
    STASIS_TRY(Annotate(WithSpaceHint(WriteAll(fd.get(), file.content), writer.store()),
                        "write " + file.name));
  }
  return {};
}

class PageWriter {
 public:
  PageWriter(ImageWriter& writer, const UnitNames& names, const WriteOptions& options,
             std::vector<PageSource> sources, UnitWriter& units)
      : writer_(writer),
        names_(names),
        compresses_(options.compression != Compression::kNone),
        sources_(std::move(sources)),
        units_(units) {}

  // Returns false if the files must stay as they are.
  Result<bool> Run();
  Result<std::vector<PageFile>> Describe();

 private:
  Status NamePages();
  Status NamePiece(const PageSource& source, uint32_t first);
  size_t Decide();
  void ChooseInPlace();
  bool IsInPlace(uint32_t page) const { return SourceOf(page).in_place; }
  Status Copy();
  Status CopyPiece(std::span<const uint32_t> pages);
  Result<std::string_view> Read(const PageSource& source, uint32_t first, uint32_t count,
                                char* buffer) const;
  Status Keep(PageSource& source);
  const PageSource& SourceOf(uint32_t page) const {
    auto behind = std::upper_bound(
        sources_.begin(), sources_.end(), page,
        [](uint32_t number, const PageSource& source) { return number < source.first; });
    return *(behind - 1);
  }

  ImageWriter& writer_;
  const UnitNames& names_;
  const bool compresses_;
  std::vector<PageSource> sources_;
  UnitWriter& units_;
};

// Returns pages of a file: in the file's own memory, or after reading them to `buffer`.
Result<std::string_view> PageWriter::Read(const PageSource& source, uint32_t first, uint32_t count,
                                          char* buffer) const {
  const uint64_t at = uint64_t{first} * kPageBytes;
  const uint64_t bytes = uint64_t{count} * kPageBytes;
  if (source.in_memory != nullptr) return std::string_view(source.in_memory + at, bytes);
  STASIS_TRY(PreadAll(source.fd.get(), buffer, bytes, at));
  return std::string_view(buffer, bytes);
}

Status PageWriter::NamePiece(const PageSource& source, uint32_t first) {
  const uint32_t count = std::min<uint32_t>(kPiecePages, source.pages - first);
  STASIS_ASSIGN(const std::string_view piece, Read(source, first, count, PieceBuffer()));
  std::vector<uint32_t> pages;
  std::vector<Id128> names;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string_view data = piece.substr(uint64_t{i} * kPageBytes, kPageBytes);
    if (IsAllZero(data)) continue;
    pages.push_back(source.first + first + i);
    names.push_back(names_.key().Hash(data));
    units_.unit(pages.back()).stored.checksum = Checksum(data);
  }
  STASIS_TRY(names_.Encrypt(names));
  for (size_t i = 0; i < pages.size(); ++i) units_.unit(pages[i]).stored.name = names[i];
  units_.looked() += uint64_t{count} * kPageBytes;
  return {};
}

Status PageWriter::NamePages() {
  std::vector<std::pair<const PageSource*, uint32_t>> pieces;
  for (const PageSource& source : sources_) {
    for (uint32_t at = 0; at < source.pages; at += kPiecePages) pieces.emplace_back(&source, at);
  }
  return units_.InParallel(pieces.size(),
                           [&](size_t i) { return NamePiece(*pieces[i].first, pieces[i].second); });
}

// Decides where each page is stored. Returns the number of runs that would result.
size_t PageWriter::Decide() {
  size_t runs = 0;
  for (uint32_t i = 0; i < units_.size(); ++i) {
    const auto& unit = units_.unit(i);
    if (!unit.stored.name.IsZero()) units_.Decide(i);
    const auto* before = i == 0 ? nullptr : &units_.unit(i - 1);
    const bool goes_on = before != nullptr && unit.kind == before->kind &&
                         (unit.kind == Kind::kZero || unit.kind == Kind::kNew ||
                          (unit.pack == before->pack && unit.number == before->number + 1));
    runs += goes_on ? 0 : 1;
  }
  return runs;
}

void PageWriter::ChooseInPlace() {
  uint64_t to_copy = 0;
  for (PageSource& source : sources_) {
    uint64_t fresh = 0;
    for (uint32_t i = source.first; i < source.first + source.pages; ++i) {
      fresh += units_.unit(i).kind == Kind::kNew ? 1 : 0;
    }
    source.in_place = !compresses_ && source.in_memory == nullptr &&
                      source.pages * uint64_t{kPageBytes} >= kLeastInPlace &&
                      fresh * kMostlyNew >= uint64_t{source.pages} * (kMostlyNew - 1);
    if (!source.in_place) to_copy += fresh * kPageBytes;
  }
  // Without enough space for the copies, all files become packs in place.
  const auto free = FreeBytes(writer_.store());
  const bool fits = free && *free >= to_copy + (to_copy >> 6);
  for (PageSource& source : sources_) {
    source.in_place |= to_copy > 0 && !fits && source.in_memory == nullptr;
  }
}

// Reads adjacent pages with one call. Pages that lie together in memory are not copied.
Status PageWriter::CopyPiece(std::span<const uint32_t> pages) {
  char* buffer = PieceBuffer();
  std::string_view piece(buffer, pages.size() * kPageBytes);
  for (size_t i = 0; i < pages.size();) {
    const PageSource& source = SourceOf(pages[i]);
    size_t next = i + 1;
    while (next < pages.size() && pages[next] == pages[next - 1] + 1 &&
           pages[next] < source.first + source.pages) {
      ++next;
    }
    char* to = buffer + i * kPageBytes;
    STASIS_ASSIGN(const std::string_view read,
                  Read(source, pages[i] - source.first, static_cast<uint32_t>(next - i), to));
    if (read.size() == piece.size()) {
      piece = read;
    } else if (read.data() != to) {
      std::memcpy(to, read.data(), read.size());
    }
    i = next;
  }
  units_.looked() += piece.size();
  return units_.Store(pages, piece);
}

Status PageWriter::Copy() {
  std::vector<uint32_t> pages;
  for (uint32_t i = 0; i < units_.size(); ++i) {
    if (units_.unit(i).kind == Kind::kNew && !IsInPlace(i)) pages.push_back(i);
  }
  const size_t at_once = compresses_ ? kCompressedPages : kPiecePages;
  return units_.InParallel((pages.size() + at_once - 1) / at_once, [&](size_t i) {
    return CopyPiece(
        std::span(pages).subspan(i * at_once).first(std::min(at_once, pages.size() - i * at_once)));
  });
}

// Makes the file a pack. No extent contains its zero pages.
Status PageWriter::Keep(PageSource& source) {
  PackIndex index;
  STASIS_ASSIGN(index.id, Id128::Random());
  index.unit_bytes = kPageBytes;
  index.body_bytes = uint64_t{source.pages} * kPageBytes;
  for (uint32_t i = 0; i < source.pages; ++i) {
    const PackUnit& page = units_.unit(source.first + i).stored;
    if (page.name.IsZero()) continue;
    index.Add({uint64_t{i} * kPageBytes, kPageBytes, kPageBytes, 1, Codec::kNone, {}, 0},
              {&page, 1});
  }
  if (index.units.empty()) return {};
  STASIS_TRY(WritePackIndex(source.fd.get(), writer_.cpu_path() + "/" + source.name, index));
  Pack pack;
  pack.id = index.id;
  pack.unit_bytes = kPageBytes;
  pack.used_units = index.units.size();
  pack.used_bytes = pack.used_units * kPageBytes;
  pack.checked_unix_ns = UnixNow();
  STASIS_TRY(writer_.AdoptPack(source.name, pack));
  source.is_pack = true;
  const uint32_t place = units_.Adopt(pack);
  uint32_t number = 0;
  for (uint32_t i = source.first; i < source.first + source.pages; ++i) {
    auto& unit = units_.unit(i);
    if (unit.stored.name.IsZero()) continue;
    unit.kind = Kind::kAdopted;
    unit.pack = place;
    unit.number = number++;
  }
  return {};
}

Result<bool> PageWriter::Run() {
  STASIS_TRY(NamePages());
  if (Decide() > kMaxRuns) return false;
  ChooseInPlace();
  STASIS_TRY(units_.LinkEarlier([this](uint32_t page) { return !IsInPlace(page); }));
  STASIS_TRY(Copy());
  for (PageSource& source : sources_) {
    if (source.in_place) STASIS_TRY(Keep(source));
  }
  STASIS_TRY(units_.Finish());
  return true;
}

Result<std::vector<PageFile>> PageWriter::Describe() {
  std::vector<PageFile> files;
  for (const PageSource& source : sources_) {
    STASIS_ASSIGN(auto runs, units_.Runs(source.first, source.first + size_t{source.pages}));
    files.push_back({"cpu/" + source.name, uint64_t{source.pages} * kPageBytes, std::move(runs)});
    if (source.in_memory != nullptr || source.is_pack) continue;
    if (::unlinkat(writer_.cpu_dir_fd(), source.name.c_str(), 0) != 0) {
      return FailErrno(errno, "remove " + source.name);
    }
  }
  return files;
}

}  // namespace

Result<WrittenUnits> WritePages(ImageWriter& writer, const UnitNames& names,
                                const WriteOptions& given,
                                const std::vector<FileInMemory>& in_memory) {
  const WriteOptions options = ForPages(given);
  WrittenUnits nothing;
  STASIS_ASSIGN(auto sources, OpenPageSources(writer, in_memory, nothing.notes));
  std::set<std::string> split;
  for (const PageSource& source : sources) split.insert(source.name);
  const auto is_split = [&](const FileInMemory& file) { return split.contains(file.name); };
  STASIS_TRY(WriteToFolder(writer, in_memory, std::not_fn(is_split)));
  if (sources.empty()) return nothing;
  const size_t pages = sources.back().first + size_t{sources.back().pages};
  STASIS_ASSIGN(auto units, UnitWriter::Begin(writer, names, options, kPageBytes, pages,
                                              pages * 4 + kMoreToLookUp));
  PageWriter pages_writer(writer, names, options, std::move(sources), *units);
  STASIS_ASSIGN(const bool cut, pages_writer.Run());
  if (!cut) {
    nothing.notes.push_back(
        "CPU memory is too fragmented to be shared with other images, so all of it is written");
    STASIS_TRY(WriteToFolder(writer, in_memory, is_split));
    return nothing;
  }
  STASIS_ASSIGN(auto files, pages_writer.Describe());
  WrittenUnits written = units->Take();
  written.page_files = std::move(files);
  return written;
}

}  // namespace stasis::store
