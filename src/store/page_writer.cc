#include "store/page_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/file.h"
#include "image/checksum.h"
#include "image/direct_file.h"
#include "image/page_pack.h"
#include "image/parallel.h"
#include "store/clock.h"
#include "store/earlier_pages.h"
#include "store/page_links.h"
#include "store/page_sources.h"

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

char* AlignedBuffer() {
  struct Freer {
    void operator()(void* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<void, Freer> buffer(std::aligned_alloc(kPackAlign, kPieceBytes));
  return static_cast<char*>(buffer.get());
}

// Where a page is.
struct Ref {
  enum Kind : uint8_t { kZero, kNew, kRepeated, kEarlier, kOwn };
  Kind kind = kZero;
  uint32_t pack = 0;    // kEarlier, kOwn
  uint32_t number = 0;  // in the pack; kRepeated: which of all pages it is the same as
};

class Cutter {
 public:
  Cutter(ImageWriter& writer, const BlockKey& key, const BlockWriterOptions& how)
      : writer_(writer), key_(key), how_(how) {}
  Result<WrittenPages> Run();

 private:
  Status OpenSources();
  Status NamePages();
  Status NamePiece(const PageSource& source, uint32_t first);
  size_t Decide();
  Status ChooseInPlace();
  Status Share();
  Status Copy();
  Status CopyPiece(const DirectFile& file, const std::vector<uint32_t>& pages, size_t begin,
                   size_t end, std::atomic<uint64_t>& file_end, PageExtent& extent);
  Status Keep(PageSource& source);
  void Describe();
  Status InParallel(size_t count, const std::function<Status(size_t)>& work);
  bool is_raw() const {
    return how_.compression == Compression::kNone || how_.compression == Compression::kAuto;
  }
  const PageSource& SourceOf(uint32_t page) const {
    auto behind = std::upper_bound(
        sources_.begin(), sources_.end(), page,
        [](uint32_t number, const PageSource& source) { return number < source.first; });
    return *(behind - 1);
  }

  ImageWriter& writer_;
  const BlockKey& key_;
  const BlockWriterOptions& how_;
  std::vector<PageSource> sources_;
  std::vector<PackPage> pages_;  // of all files; without a name: all zero
  std::vector<Ref> refs_;        // the same
  EarlierPages earlier_;
  std::map<uint32_t, uint32_t> linked_;  // earlier packs -> ours
  std::atomic<uint64_t> looked_{0};
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

Status Cutter::OpenSources() {
  STASIS_ASSIGN(sources_, OpenPageSources(writer_, out_.notes));
  if (sources_.empty()) return {};
  const size_t pages = sources_.back().first + size_t{sources_.back().pages};
  pages_.resize(pages);
  refs_.resize(pages);
  return {};
}

Status Cutter::NamePiece(const PageSource& source, uint32_t first) {
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
  std::vector<std::pair<const PageSource*, uint32_t>> pieces;
  for (const PageSource& source : sources_) {
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
  for (PageSource& source : sources_) {
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
  for (PageSource& source : sources_) source.in_place |= to_copy > 0 && !fits;
  return {};
}

// Which of the earlier packs become files of this image; the pages of all others are new.
Status Cutter::Share() {
  std::vector<NeededPages> candidates(earlier_.packs());
  for (const PageSource& source : sources_) {
    if (source.in_place) continue;
    for (uint32_t i = source.first; i < source.first + source.pages; ++i) {
      if (refs_[i].kind != Ref::kEarlier) continue;
      NeededPages& candidate = candidates[refs_[i].pack];
      candidate.numbers.push_back(refs_[i].number);
      candidate.images.insert(earlier_.Find(pages_[i].name)->image);
    }
  }
  std::vector<std::pair<uint64_t, uint32_t>> most_used;
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].numbers.empty()) most_used.emplace_back(candidates[i].bytes(), i);
  }
  std::sort(most_used.begin(), most_used.end(), std::greater<>());
  PageLinks links(writer_, earlier_, how_,
                  [this](size_t count, const auto& work) { return InParallel(count, work); });
  for (const auto& [bytes, index] : most_used) {
    const bool worth_it = linked_.size() < how_.max_linked_packs &&
                          bytes * kLeastUse >= earlier_.pack(index).occupied_bytes;
    Pack linked;
    if (!worth_it || !links.Rely(index, candidates[index], linked)) continue;
    linked_.emplace(index, static_cast<uint32_t>(out_.packs.size()));
    out_.packs.push_back(std::move(linked));
    out_.shared_bytes += bytes;
    if (how_.progress && !how_.progress(looked_)) return Fail(Code::kCancelled, "cancelled");
  }
  out_.notes.insert(out_.notes.end(), links.notes().begin(), links.notes().end());
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
    const PageSource& source = SourceOf(pages[i]);
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
  for (const PageSource& source : sources_) {
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
Status Cutter::Keep(PageSource& source) {
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
  for (const PageSource& source : sources_) {
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
    const EarlierQuery query{key_.id(), how_.job_id, how_.uid, how_.origin};
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
  for (PageSource& source : sources_) {
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
