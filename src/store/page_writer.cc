#include "store/page_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "base/file.h"
#include "image/beneath.h"
#include "image/checksum.h"
#include "image/direct_file.h"
#include "image/page_jobs.h"
#include "image/page_pack.h"
#include "image/parallel.h"
#include "store/clock.h"
#include "store/earlier_pages.h"

namespace stasis::store {

using image::BlockKey;
using image::Codec;
using image::Compression;
using image::DirectFile;
using image::ForEach;
using image::Id128;
using image::ImageWriter;
using image::IsAllZero;
using image::kPackAlign;
using image::kPageBytes;
using image::Manifest;
using image::Pack;
using image::PackPage;
using image::PageExtent;
using image::PageFile;
using image::PageIndex;
using image::PageJobs;
using image::PagePackReader;
using image::PageRun;

namespace {

constexpr size_t kPieceBytes = 1 << 20;  // read, and written, at once
constexpr size_t kPiecePages = kPieceBytes / kPageBytes;
constexpr size_t kCompressedPages = 64;  // that are compressed together
constexpr size_t kLeastSaving = 16;      // one sixteenth; else they are stored as they are
constexpr uint64_t kLeastUse = 8;        // one eighth, as for blocks (block_writer.cc)

// A file stays where it is if so much of it is new, and it is so large: a small one is not worth a
// pack of its own, of which an image can only link so many.
constexpr uint64_t kLeastInPlace = 16 << 20;
constexpr size_t kMostlyNew = 4;  // three of four pages

constexpr size_t kMaxRuns = 2'000'000;  // the manifest holds them
constexpr uint64_t kMoreToLookAt = 1 << 20;

bool IsPagesFile(const std::string& name) {
  constexpr std::string_view kBegin = "pages-", kEnd = ".img";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return false;
  const std::string number =
      name.substr(kBegin.size(), name.size() - std::min(name.size(), kBegin.size() + kEnd.size()));
  return !number.empty() && number.find_first_not_of("0123456789") == number.npos;
}

char* AlignedBuffer() {
  struct Freer {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<void, Freer> buffer(std::aligned_alloc(kPackAlign, kPieceBytes));
  return static_cast<char*>(buffer.get());
}

// One of CRIU's files.
struct Source {
  std::string name;
  UniqueFd fd;
  uint32_t first = 0;  // number of its first page among those of all files
  uint32_t pages = 0;
  bool in_place = false;
};

// Where a page is.
struct Ref {
  enum Kind : uint8_t { kZero, kNew, kRepeated, kEarlier, kOwn };
  Kind kind = kZero;
  uint32_t pack = 0;    // kEarlier, kOwn
  uint32_t number = 0;  // in the pack; kRepeated: which of all pages it is the same as
};

// Pages of an earlier pack that are needed.
struct Candidate {
  std::vector<uint32_t> numbers;      // in the pack
  std::set<uint32_t> images;          // whose references make sure that they are there
  std::optional<uint32_t> damaged{};  // the image of a page that is not what it was
  uint64_t bytes() const { return numbers.size() * uint64_t{kPageBytes}; }
};

class Cutter {
 public:
  Cutter(ImageWriter& writer, const BlockKey& key, const BlockWriterOptions& how)
      : writer_(writer), key_(key), how_(how), check_budget_(how.always_check_bytes) {}
  Result<WrittenPages> Run();

 private:
  Status OpenSources();
  Status NamePages();
  Status NamePiece(const Source& source, uint32_t first);
  size_t Decide();
  Status ChooseInPlace();
  Status Share();
  bool Rely(uint32_t pack, Candidate& candidate, Pack& linked);
  Status CheckReferences(const EarlierPages::EarlierPack& pack, Candidate& candidate, Pack& linked);
  Status Copy();
  Status CopyPiece(const DirectFile& file, const std::vector<uint32_t>& pages, size_t begin,
                   size_t end, std::atomic<uint64_t>& file_end, PageExtent& extent);
  Status Keep(Source& source);
  void Describe();
  Status InParallel(size_t count, const std::function<Status(size_t)>& work);
  bool is_raw() const {
    return how_.compression == Compression::kNone || how_.compression == Compression::kAuto;
  }
  const Source& SourceOf(uint32_t page) const {
    auto behind = std::upper_bound(
        sources_.begin(), sources_.end(), page,
        [](uint32_t number, const Source& source) { return number < source.first; });
    return *(behind - 1);
  }

  ImageWriter& writer_;
  const BlockKey& key_;
  const BlockWriterOptions& how_;
  std::vector<Source> sources_;
  std::vector<PackPage> pages_;  // of all files; without a name: all zero
  std::vector<Ref> refs_;        // the same
  EarlierPages earlier_;
  std::map<uint32_t, uint32_t> linked_;  // earlier packs -> ours
  std::atomic<uint64_t> looked_{0};
  uint64_t check_budget_;
  WrittenPages out_;
};

Status Cutter::InParallel(size_t count, const std::function<Status(size_t)>& work) {
  std::mutex mutex;
  std::optional<Error> failed;
  auto unless_failed = [&](size_t i) {
    {
      std::lock_guard lock(mutex);
      if (failed) return;
    }
    auto status = work(i);
    if (status) return;
    std::lock_guard lock(mutex);
    if (!failed) failed = std::move(status.error());
  };
  image::Progress progress = [&](uint64_t done, uint64_t) {
    return !how_.progress || how_.progress(done);
  };
  STASIS_TRY(ForEach(count, unless_failed, looked_, 0, progress));
  if (failed) return Fail(std::move(*failed));
  return {};
}

// Files that cannot be cut stay files of the image.
Status Cutter::OpenSources() {
  STASIS_ASSIGN(auto entries, image::ListFolder(writer_.cpu_dir_fd()));
  uint64_t pages = 0;
  for (const image::Entry& entry : entries) {
    if (!entry.is_regular || !IsPagesFile(entry.name)) continue;
    Source source;
    source.name = entry.name;
    STASIS_ASSIGN(source.fd, image::OpenBeneath(writer_.cpu_dir_fd(), entry.name, O_RDWR));
    struct stat st;
    if (::fstat(source.fd.get(), &st) != 0) return FailErrno(errno, "stat " + entry.name);
    const auto size = static_cast<uint64_t>(st.st_size);
    if (size == 0 || size % kPageBytes != 0) continue;
    source.first = static_cast<uint32_t>(pages);
    pages += size / kPageBytes;
    if (pages > image::kMaxPackPages) {
      out_.notes.push_back(fmt::format(
          "there are more than {} GiB of CPU memory: it is written whole, and shares nothing with "
          "other images",
          image::kMaxPackPages * kPageBytes >> 30));
      sources_.clear();
      return {};
    }
    source.pages = static_cast<uint32_t>(size / kPageBytes);
    sources_.push_back(std::move(source));
  }
  pages_.resize(pages);
  refs_.resize(pages);
  return {};
}

Status Cutter::NamePiece(const Source& source, uint32_t first) {
  char* buffer = AlignedBuffer();
  const uint32_t count = std::min<uint32_t>(kPiecePages, source.pages - first);
  STASIS_TRY(PreadAll(source.fd.get(), buffer, uint64_t{count} * kPageBytes,
                      uint64_t{first} * kPageBytes));
  for (uint32_t i = 0; i < count; ++i) {
    const std::string_view data(buffer + uint64_t{i} * kPageBytes, kPageBytes);
    if (IsAllZero(data)) continue;
    pages_[source.first + first + i] = {key_.Name(data), image::Checksum(data)};
  }
  looked_ += uint64_t{count} * kPageBytes;
  return {};
}

Status Cutter::NamePages() {
  std::vector<std::pair<const Source*, uint32_t>> pieces;
  for (const Source& source : sources_) {
    for (uint32_t at = 0; at < source.pages; at += kPiecePages) pieces.emplace_back(&source, at);
  }
  return InParallel(pieces.size(),
                    [&](size_t i) { return NamePiece(*pieces[i].first, pieces[i].second); });
}

// What each page is. Returns the number of runs that would make.
size_t Cutter::Decide() {
  NameTable mine(pages_.size());
  auto name_of = [this](uint32_t page) -> const Id128& { return pages_[page].name; };
  size_t runs = 0;
  for (uint32_t i = 0; i < pages_.size(); ++i) {
    Ref& ref = refs_[i];
    if (!pages_[i].name.IsZero()) {
      uint32_t& slot = mine.At(pages_[i].name, name_of);
      if (slot != NameTable::kNone) {
        ref = {Ref::kRepeated, 0, slot};
      } else {
        slot = i;
        const auto* at = earlier_.Find(pages_[i].name);
        ref = at == nullptr ? Ref{Ref::kNew, 0, 0} : Ref{Ref::kEarlier, at->pack, at->number};
      }
    }
    const bool goes_on = i > 0 && ref.kind == refs_[i - 1].kind &&
                         (ref.kind == Ref::kZero || ref.kind == Ref::kNew ||
                          (ref.pack == refs_[i - 1].pack && ref.number == refs_[i - 1].number + 1));
    runs += goes_on ? 0 : 1;
  }
  return runs;
}

Status Cutter::ChooseInPlace() {
  uint64_t to_copy = 0;
  for (Source& source : sources_) {
    uint64_t fresh = 0;
    for (uint32_t i = source.first; i < source.first + source.pages; ++i) {
      fresh += refs_[i].kind == Ref::kNew ? 1 : 0;
    }
    source.in_place = is_raw() && source.pages * uint64_t{kPageBytes} >= kLeastInPlace &&
                      fresh * kMostlyNew >= uint64_t{source.pages} * (kMostlyNew - 1);
    if (!source.in_place) to_copy += fresh * kPageBytes;
  }
  // Where there is no room for a copy beside the file, the file will do.
  auto free = FreeBytes(writer_.store());
  const bool fits = free && *free >= to_copy + (to_copy >> 6);
  for (Source& source : sources_) source.in_place |= to_copy > 0 && !fits;
  return {};
}

// Before an image relies on pages that another wrote, under the pack's lock: as for blocks
// (block_writer.cc).
Status Cutter::CheckReferences(const EarlierPages::EarlierPack& pack, Candidate& candidate,
                               Pack& linked) {
  const PagePackReader& reader = pack.reader;
  struct stat st;
  if (::fstat(reader.fd(), &st) != 0) return FailErrno(errno, "stat " + pack.pack.path());
  const int64_t now = UnixNow();
  int64_t checked = now;
  for (const auto& [image, when] : pack.checked_unix_ns) {
    if (!candidate.images.contains(image)) continue;
    if (!earlier_.IsStillThere(image)) return Fail(Code::kAborted, "its image is gone");
    checked = std::min(checked, when);
  }
  std::sort(candidate.numbers.begin(), candidate.numbers.end());
  PageJobs jobs({&reader});
  const auto& numbers = candidate.numbers;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    jobs.Add(0, numbers[i], static_cast<uint32_t>(end - i), 0, uint64_t{numbers[i]} * kPageBytes);
    i = end;
  }
  jobs.Plan();
  const PageJobs::Use used = jobs.Used()[0];
  linked = pack.pack;
  linked.linked = true;
  linked.used_blocks = used.pages;
  linked.used_bytes = used.stored_bytes;
  linked.checked_unix_ns = checked;
  const bool must_read =
      now - checked > how_.trust_ns || Ns(st.st_mtim) > checked || jobs.AnyIsHole(0);
  if (!must_read && used.stored_bytes > check_budget_) return {};
  check_budget_ -= std::min(check_budget_, used.stored_bytes);
  std::atomic<uint64_t> damaged{0};  // a byte of a page that is
  auto read = InParallel(jobs.size(), [&](size_t i) {
    PageJobs::Place where;
    auto status = jobs.Run(i, {}, where);
    if (!status) damaged = where.at;
    return status;
  });
  if (!read) {
    const auto* page = earlier_.Find(reader.pages()[damaged / kPageBytes].name);
    if (page != nullptr) candidate.damaged = page->image;
    return read;
  }
  linked.checked_unix_ns = now;
  return {};
}

// Whether the image refers to the candidate's pages from now on.
bool Cutter::Rely(uint32_t index, Candidate& candidate, Pack& linked) {
  const auto& pack = earlier_.pack(index);
  const EarlierImage& image = earlier_.image(*candidate.images.begin());
  auto opened = writer_.LinkPack(image.folder.get(), pack.pack, pack.file);
  if (!opened) {
    if (CannotShare(opened.error()) && out_.notes.empty()) {
      out_.notes.push_back("CPU memory that earlier images have is written again: " +
                           opened.error().ToString());
    }
    return false;
  }
  auto status = CheckReferences(pack, candidate, linked);
  if (status) return true;
  writer_.UnlinkPack(pack.pack);
  if (status.error().code == Code::kDataLoss) {
    const EarlierImage& blamed = candidate.damaged ? earlier_.image(*candidate.damaged) : image;
    out_.notes.push_back(DamagedNote(blamed, pack.pack, status.error()));
  }
  return false;
}

// Which of the earlier packs become files of this image; the pages of all others are new.
Status Cutter::Share() {
  std::vector<Candidate> candidates(earlier_.packs());
  for (const Source& source : sources_) {
    if (source.in_place) continue;
    for (uint32_t i = source.first; i < source.first + source.pages; ++i) {
      if (refs_[i].kind != Ref::kEarlier) continue;
      Candidate& candidate = candidates[refs_[i].pack];
      candidate.numbers.push_back(refs_[i].number);
      candidate.images.insert(earlier_.Find(pages_[i].name)->image);
    }
  }
  std::vector<std::pair<uint64_t, uint32_t>> most_used;
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].numbers.empty()) most_used.emplace_back(candidates[i].bytes(), i);
  }
  std::sort(most_used.begin(), most_used.end(), std::greater<>());
  for (const auto& [bytes, index] : most_used) {
    const bool worth_it = linked_.size() < how_.max_linked_packs &&
                          bytes * kLeastUse >= earlier_.pack(index).occupied_bytes;
    Pack linked;
    if (!worth_it || !Rely(index, candidates[index], linked)) continue;
    linked_.emplace(index, static_cast<uint32_t>(out_.packs.size()));
    out_.packs.push_back(std::move(linked));
    out_.shared_bytes += bytes;
    if (how_.progress && !how_.progress(looked_)) return Fail(Code::kCancelled, "cancelled");
  }
  for (Ref& ref : refs_) {
    if (ref.kind == Ref::kEarlier && !linked_.contains(ref.pack)) ref = {Ref::kNew, 0, 0};
  }
  return {};
}

// So many pages, of which neighbours are read together, one behind the other into the new pack.
Status Cutter::CopyPiece(const DirectFile& file, const std::vector<uint32_t>& pages, size_t begin,
                         size_t end, std::atomic<uint64_t>& file_end, PageExtent& extent) {
  char* buffer = AlignedBuffer();
  for (size_t i = begin; i < end;) {
    const Source& source = SourceOf(pages[i]);
    size_t next = i + 1;
    while (next < end && pages[next] == pages[next - 1] + 1 &&
           pages[next] < source.first + source.pages) {
      ++next;
    }
    STASIS_TRY(PreadAll(source.fd.get(), buffer + (i - begin) * kPageBytes, (next - i) * kPageBytes,
                        uint64_t{pages[i] - source.first} * kPageBytes));
    i = next;
  }
  for (size_t i = begin; i < end; ++i) {
    const std::string_view data(buffer + (i - begin) * kPageBytes, kPageBytes);
    if (image::Checksum(data) != pages_[pages[i]].checksum) {
      return Fail(Code::kDataLoss, "what CRIU wrote is not what it was a moment ago");
    }
  }
  std::string_view stored(buffer, (end - begin) * kPageBytes);
  extent.pages = static_cast<uint32_t>(end - begin);
  if (!is_raw()) {
    thread_local std::vector<char> packed(kCompressedPages * kPageBytes);
    const Codec codec = how_.compression == Compression::kLz4 ? Codec::kLz4 : Codec::kZstd;
    size_t room = stored.size() - stored.size() / kLeastSaving;
    room = std::min(room, stored.size() - kPackAlign) / kPackAlign * kPackAlign;
    const size_t size = room == 0 ? 0 : image::Compress(codec, stored, packed.data(), room);
    if (size > 0) {
      extent.codec = codec;
      extent.checksum = image::Checksum({packed.data(), size});
      extent.stored_bytes = size;
      std::fill(packed.data() + size, packed.data() + extent.padded_bytes(), '\0');
      stored = {packed.data(), extent.padded_bytes()};
    }
  }
  if (extent.codec == Codec::kNone) extent.stored_bytes = stored.size();
  extent.offset = file_end.fetch_add(stored.size());
  looked_ += extent.pages * uint64_t{kPageBytes};
  return file.WriteAt(stored, extent.offset);
}

Status Cutter::Copy() {
  std::vector<uint32_t> pages;
  for (const Source& source : sources_) {
    if (source.in_place) continue;
    for (uint32_t i = source.first; i < source.first + source.pages; ++i) {
      if (refs_[i].kind == Ref::kNew) pages.push_back(i);
    }
  }
  if (pages.empty()) return {};
  Pack pack;
  pack.holds_pages = true;
  STASIS_ASSIGN(pack.id, Id128::Random());
  STASIS_ASSIGN(UniqueFd fd, writer_.AddPagePack(pack));
  const DirectFile file(std::move(fd), writer_.store() + "/" + pack.path());
  // A write that makes a file longer would keep the others out.
  if (is_raw()) {
    (void)::fallocate(file.fd(), 0, 0, static_cast<off_t>(pages.size() * uint64_t{kPageBytes}));
  }
  const size_t at_once = is_raw() ? kPiecePages : kCompressedPages;
  std::vector<PageExtent> pieces((pages.size() + at_once - 1) / at_once);
  std::atomic<uint64_t> file_end{0};
  STASIS_TRY(InParallel(pieces.size(), [&](size_t i) {
    return CopyPiece(file, pages, i * at_once, std::min(pages.size(), (i + 1) * at_once), file_end,
                     pieces[i]);
  }));

  std::vector<size_t> order(pieces.size());  // by their place in the file
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return pieces[a].offset < pieces[b].offset; });
  PageIndex index;
  const auto own = static_cast<uint32_t>(out_.packs.size());
  for (size_t piece : order) {
    const PageExtent& extent = pieces[piece];
    pack.used_bytes += extent.stored_bytes;
    if (extent.codec == Codec::kNone && !index.extents.empty() &&
        index.extents.back().codec == Codec::kNone) {
      index.extents.back().stored_bytes += extent.stored_bytes;
      index.extents.back().pages += extent.pages;
    } else {
      index.extents.push_back(extent);
    }
    for (uint32_t i = 0; i < extent.pages; ++i) {
      const uint32_t page = pages[piece * at_once + i];
      refs_[page] = {Ref::kOwn, own, static_cast<uint32_t>(index.pages.size())};
      index.pages.push_back(pages_[page]);
    }
  }
  STASIS_TRY(image::FinishPagePack(file.fd(), file.path(), pack.id, file_end, index));
  pack.used_blocks = pages.size();
  pack.checked_unix_ns = UnixNow();
  out_.new_bytes += pages.size() * uint64_t{kPageBytes};
  out_.stored_bytes += pack.used_bytes;
  out_.packs.push_back(std::move(pack));
  return {};
}

// The file becomes a pack. What is zero in it is of no extent.
Status Cutter::Keep(Source& source) {
  PageIndex index;
  const auto own = static_cast<uint32_t>(out_.packs.size());
  for (uint32_t i = 0; i < source.pages; ++i) {
    const uint32_t page = source.first + i;
    if (pages_[page].name.IsZero()) continue;
    const uint64_t offset = uint64_t{i} * kPageBytes;
    if (index.extents.empty() || index.extents.back().end() != offset) {
      index.extents.push_back({offset, 0, 0, Codec::kNone, {}, 0});
    }
    index.extents.back().stored_bytes += kPageBytes;
    index.extents.back().pages += 1;
    refs_[page] = {Ref::kOwn, own, static_cast<uint32_t>(index.pages.size())};
    index.pages.push_back(pages_[page]);
  }
  if (index.pages.empty()) return {};
  Pack pack;
  pack.holds_pages = true;
  STASIS_ASSIGN(pack.id, Id128::Random());
  STASIS_TRY(image::FinishPagePack(source.fd.get(), writer_.cpu_path() + "/" + source.name, pack.id,
                                   uint64_t{source.pages} * kPageBytes, index));
  STASIS_TRY(writer_.TakeAsPagePack(source.name, pack));
  source.name.clear();
  pack.used_blocks = index.pages.size();
  pack.used_bytes = pack.used_blocks * kPageBytes;
  pack.checked_unix_ns = UnixNow();
  out_.new_bytes += pack.used_bytes;
  out_.stored_bytes += pack.used_bytes;
  out_.packs.push_back(std::move(pack));
  return {};
}

void Cutter::Describe() {
  for (const Source& source : sources_) {
    PageFile& file = out_.files.emplace_back();
    file.size_bytes = uint64_t{source.pages} * kPageBytes;
    for (uint32_t i = source.first; i < source.first + source.pages; ++i) {
      const bool repeated = refs_[i].kind == Ref::kRepeated;
      const Ref& ref = repeated ? refs_[refs_[i].number] : refs_[i];
      if (repeated) out_.repeated_bytes += kPageBytes;
      if (ref.kind == Ref::kZero) out_.zero_bytes += kPageBytes;
      PageRun one{PageRun::kZeros, 0, 1};
      if (ref.kind == Ref::kEarlier) one = {linked_.at(ref.pack), ref.number, 1};
      if (ref.kind == Ref::kOwn) one = {ref.pack, ref.number, 1};
      PageRun* last = file.runs.empty() ? nullptr : &file.runs.back();
      const bool goes_on = last != nullptr && last->pack == one.pack &&
                           (one.is_zero() || last->first + last->pages == one.first);
      if (goes_on) {
        last->pages += 1;
      } else {
        file.runs.push_back(one);
      }
    }
  }
}

Result<WrittenPages> Cutter::Run() {
  out_.naming = {image::kBlockNameFunction, key_.id()};
  STASIS_TRY(OpenSources());
  if (sources_.empty()) return std::move(out_);
  STASIS_TRY(NamePages());
  if (how_.share) {
    const EarlierQuery query{key_.id(), how_.job_id, how_.uid};
    STASIS_ASSIGN(earlier_,
                  EarlierPages::Look(writer_.store(), query, pages_.size() * 4 + kMoreToLookAt));
  }
  if (Decide() > kMaxRuns) {
    out_.notes.push_back("CPU memory is too scattered to be shared with other images");
    return std::move(out_);
  }
  STASIS_TRY(ChooseInPlace());
  STASIS_TRY(Share());
  STASIS_TRY(Copy());
  std::vector<std::string> names;
  for (Source& source : sources_) {
    names.push_back(source.name);
    if (source.in_place) STASIS_TRY(Keep(source));
  }
  Describe();
  for (size_t i = 0; i < sources_.size(); ++i) {
    out_.files[i].path = "cpu/" + names[i];
    const std::string& name = sources_[i].name;
    if (name.empty()) continue;  // it is a pack now
    if (::unlinkat(writer_.cpu_dir_fd(), name.c_str(), 0) != 0) {
      return FailErrno(errno, "remove " + name);
    }
  }
  return std::move(out_);
}

}  // namespace

void WrittenPages::DescribeIn(Manifest& manifest) const {
  if (files.empty()) return;
  manifest.block_naming = naming;
  const auto before = static_cast<uint32_t>(manifest.packs.size());
  manifest.packs.insert(manifest.packs.end(), packs.begin(), packs.end());
  manifest.page_files = files;
  for (PageFile& file : manifest.page_files) {
    for (PageRun& run : file.runs) run.pack += run.is_zero() ? 0 : before;
  }
}

Result<WrittenPages> WritePages(ImageWriter& writer, const BlockKey& key,
                                const BlockWriterOptions& how) {
  return Cutter(writer, key, how).Run();
}

}  // namespace stasis::store
