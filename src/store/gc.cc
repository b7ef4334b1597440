#include "store/gc.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>

#include "base/file.h"
#include "image/beneath.h"
#include "image/pack.h"
#include "image/page_pack.h"
#include "image/reader.h"
#include "store/store_folder.h"

namespace stasis::store {

using image::Codec;
using image::DeviceRange;
using image::Entry;
using image::Id128;
using image::Id128Hash;
using image::ImageReader;
using image::kPageBytes;
using image::ListFolder;
using image::Manifest;
using image::OpenBeneath;
using image::OpenFolder;
using image::OpenRegular;
using image::Pack;
using image::PackEntry;
using image::PackReader;
using image::PageExtent;
using image::PageFile;
using image::PagePackReader;
using image::PageRun;

namespace {

constexpr uint64_t kStatBlock = 512;

using Names = std::unordered_set<Id128, Id128Hash>;

// An image as it was found. Its folder stays open, so that no other can pass for it later. Its
// manifest does not stay in memory: it may have 64 MiB, and a store thousands of images.
struct SeenImage {
  std::string name;
  UniqueFd folder;
};

// Pages of a pack, as intervals that neither meet nor overlap: begin -> end.
class PageSet {
 public:
  void Add(uint64_t begin, uint64_t end) {
    assert(begin <= end);
    if (begin == end) return;
    auto at = pages_.upper_bound(begin);
    if (at != pages_.begin() && std::prev(at)->second >= begin) {
      --at;
      begin = at->first;
    }
    while (at != pages_.end() && at->first <= end) {
      end = std::max(end, at->second);
      at = pages_.erase(at);
    }
    pages_.emplace_hint(at, begin, end);
  }
  const std::map<uint64_t, uint64_t>& intervals() const { return pages_; }

 private:
  std::map<uint64_t, uint64_t> pages_;
};

// What images refer to in one pack.
struct Need {
  Names blocks;
  PageSet pages;
};

// One name of a pack.
struct PackLink {
  const SeenImage* image;
  std::string path;  // below the image
};

// A file that is a pack, with all its names in the store.
struct SeenPack {
  std::vector<PackLink> links;
  Need need;                // of all images that were read
  bool all_needed = false;  // an image does not say what it needs of it
  std::string unreadable;   // why it cannot be told what is needed; empty: it can
  std::string Path() const { return links.front().image->name + "/" + links.front().path; }
};

using FileKey = std::pair<uint64_t, uint64_t>;  // device, inode

// The folders of all images are held open at once.
void AllowManyFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

// A part of a pack that nothing refers to, and how many blocks or pages that is.
struct Piece {
  uint64_t offset;
  uint64_t bytes;
  uint64_t blocks;
};

// Neighbours become one.
void AddPiece(std::vector<Piece>& pieces, const Piece& piece) {
  if (piece.bytes == 0) return;
  if (!pieces.empty() && pieces.back().offset + pieces.back().bytes == piece.offset) {
    pieces.back().bytes += piece.bytes;
    pieces.back().blocks += piece.blocks;
  } else {
    pieces.push_back(piece);
  }
}

void FindUnused(const PackReader& reader, const Need& need, std::vector<Piece>& pieces) {
  for (const PackEntry& entry : reader.entries()) {
    if (need.blocks.contains(entry.name)) continue;
    AddPiece(pieces, {entry.offset, entry.padded_bytes(), 1});
  }
}

// What lies between extents is nobody's.
void FindUnused(const PagePackReader& reader, const Need& need, std::vector<Piece>& pieces) {
  std::vector<bool> needed(reader.pages().size());
  for (const auto& [first, last] : need.pages.intervals()) {
    for (uint64_t page = first; page < std::min<uint64_t>(last, needed.size()); ++page) {
      needed[page] = true;
    }
  }
  uint64_t end = 0;
  for (const PageExtent& extent : reader.extents()) {
    AddPiece(pieces, {end, extent.offset - end, (extent.offset - end) / kPageBytes});
    end = extent.end();
    const auto begin = needed.begin() + extent.first;
    if (extent.codec != Codec::kNone) {
      if (std::none_of(begin, begin + extent.pages, [](bool one) { return one; })) {
        AddPiece(pieces, {extent.offset, extent.padded_bytes(), extent.pages});
      }
      continue;
    }
    for (uint32_t i = 0; i < extent.pages; ++i) {
      if (begin[i]) continue;
      AddPiece(pieces, {extent.offset + uint64_t{i} * kPageBytes, kPageBytes, 1});
    }
  }
  AddPiece(pieces, {end, reader.body_bytes() - end, (reader.body_bytes() - end) / kPageBytes});
}

// What nothing refers to, hole or not.
Result<std::vector<Piece>> UnusedIn(const PackLink& link, const Need& need) {
  std::vector<Piece> pieces;
  STASIS_ASSIGN(auto opened, OpenRegular(link.image->folder.get(), link.path));
  if (link.path.starts_with(image::kPagesFolder)) {
    STASIS_ASSIGN(auto reader, PagePackReader::Open(std::move(opened), link.path));
    FindUnused(reader, need, pieces);
  } else {
    STASIS_ASSIGN(auto reader, PackReader::Open(std::move(opened), link.path));
    FindUnused(reader, need, pieces);
  }
  return pieces;
}

// The parts of these that are not yet holes. One walk along the file.
std::vector<Piece> WithoutHoles(int fd, const std::vector<Piece>& pieces) {
  assert(std::is_sorted(pieces.begin(), pieces.end(),
                        [](const Piece& a, const Piece& b) { return a.offset < b.offset; }));
  std::vector<Piece> left;
  for (const Piece& piece : pieces) {
    const uint64_t end = piece.offset + piece.bytes;
    uint64_t at = piece.offset;
    std::vector<Piece> parts;
    while (at < end) {
      const off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
      if (data < 0 && errno == ENXIO) break;  // none any more
      const uint64_t begin = data < 0 ? at : static_cast<uint64_t>(data);
      if (begin >= end) break;
      const off_t hole = ::lseek(fd, static_cast<off_t>(begin), SEEK_HOLE);
      at = hole < 0 ? end : std::min(end, static_cast<uint64_t>(hole));
      parts.push_back({begin, at - begin, 0});
    }
    for (Piece& part : parts) {
      // Blocks may be of different lengths; a part has its share of them, one at least.
      part.blocks = std::max<uint64_t>(1, piece.blocks * part.bytes / piece.bytes);
      left.push_back(part);
    }
  }
  return left;
}

class Collector {
 public:
  Collector(std::string store, const GcOptions& options)
      : store_(std::move(store)), options_(options) {}

  Result<GcReport> Run();

 private:
  Status Step(const std::string& step) {
    return options_.before_step ? options_.before_step(step) : Status{};
  }
  Status ReadImages();
  void AddNeeds(const Manifest& manifest, const std::map<std::string, SeenPack*>& packs);
  Status Collect(const SeenPack& pack);
  std::string WhyNot(const SeenPack& pack, int fd) const;
  Status Free(const SeenPack& pack, int fd, const std::vector<Piece>& pieces);
  void Skip(const SeenPack& pack, std::string why, bool busy = false) {
    report_.skipped.push_back({pack.Path(), std::move(why), busy});
  }

  const std::string store_;
  const GcOptions& options_;
  UniqueFd store_fd_;
  std::vector<std::unique_ptr<SeenImage>> images_;
  std::map<FileKey, SeenPack> packs_;
  GcReport report_;
};

Result<GcReport> Collector::Run() {
  STASIS_ASSIGN(store_fd_, OpenFolder(store_));
  STASIS_TRY(Step("sweep"));
  STASIS_ASSIGN(report_.swept, SweepPartials(store_));
  STASIS_TRY(Step("read the images"));
  AllowManyFiles();
  STASIS_TRY(ReadImages());
  report_.images = images_.size();
  report_.packs = packs_.size();
  for (const auto& [key, pack] : packs_) STASIS_TRY(Collect(pack));
  return std::move(report_);
}

Status Collector::ReadImages() {
  STASIS_ASSIGN(auto names, ListImages(store_));
  for (std::string& name : names) {
    auto image = std::make_unique<SeenImage>();
    image->name = std::move(name);
    auto folder = OpenBeneath(store_fd_.get(), image->name, O_RDONLY | O_DIRECTORY);
    // Deleted meanwhile, a link, another user's: its packs have a name more than we find, and are
    // left alone.
    if (!folder) continue;
    image->folder = std::move(*folder);
    // By path: two manifests are never in memory at a time.
    std::map<std::string, SeenPack*> packs_here;
    auto reader = ImageReader::Open(store_ + "/" + image->name, ImageReader::Deletion::kAllowed);
    for (const std::string folder : {"gpu", image::kPagesFolder}) {
      auto fd = OpenBeneath(image->folder.get(), folder, O_RDONLY | O_DIRECTORY);
      if (!fd) continue;
      STASIS_ASSIGN(auto files, ListFolder(fd->get()));
      for (const Entry& file : files) {
        struct stat st;
        if (!file.is_regular ||
            ::fstatat(fd->get(), file.name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) {
          continue;
        }
        SeenPack& pack = packs_[{st.st_dev, st.st_ino}];
        pack.links.push_back({image.get(), folder + "/" + file.name});
        packs_here[pack.links.back().path] = &pack;
        if (!reader && pack.unreadable.empty()) {
          pack.unreadable = "it cannot be told what image " + image->name +
                            " needs of it: " + reader.error().ToString();
        }
      }
    }
    if (reader) AddNeeds((*reader)->manifest(), packs_here);
    images_.push_back(std::move(image));
  }
  return {};
}

// One walk over what an image refers to, whatever the number of its packs.
void Collector::AddNeeds(const Manifest& manifest, const std::map<std::string, SeenPack*>& packs) {
  std::vector<Need*> needs(manifest.packs.size());  // by index; null: that file is not there
  std::set<std::string> listed;
  for (size_t i = 0; i < manifest.packs.size(); ++i) {
    const std::string path = manifest.packs[i].path();
    listed.insert(path);
    if (auto pack = packs.find(path); pack != packs.end()) needs[i] = &pack->second->need;
  }
  // A file that the manifest does not list, and all of them in an image of format 1.
  for (const auto& [path, pack] : packs) {
    if (!listed.contains(path)) pack->all_needed = true;
  }
  for (const DeviceRange& range : manifest.ranges) {
    assert(range.packs.empty() || range.packs.size() == range.blocks.size());
    for (size_t i = 0; i < range.packs.size(); ++i) {
      ++report_.references;
      if (range.blocks[i].IsZero() || range.packs[i] >= needs.size()) continue;
      if (Need* need = needs[range.packs[i]]; need != nullptr) need->blocks.insert(range.blocks[i]);
    }
  }
  for (const PageFile& file : manifest.page_files) {
    for (const PageRun& run : file.runs) {
      ++report_.references;
      if (run.is_zero() || run.pack >= needs.size()) continue;
      if (Need* need = needs[run.pack]; need != nullptr) {
        need->pages.Add(run.first, uint64_t{run.first} + run.pages);
      }
    }
  }
}

// Under the exclusive lock: whether what was read before is all there is. An image that refers to
// the pack can only have come since by a dump; then the pack has a name more. One that is gone has
// taken its name with it, also where another folder has its place now.
std::string Collector::WhyNot(const SeenPack& pack, int fd) const {
  struct stat st;
  if (::fstat(fd, &st) != 0) return "it cannot be looked at";
  for (const PackLink& link : pack.links) {
    struct stat by_name;
    if (::fstatat(link.image->folder.get(), link.path.c_str(), &by_name, AT_SYMLINK_NOFOLLOW) !=
            0 ||
        !(FileId::Of(by_name) == FileId::Of(st))) {
      return "an image that has it was deleted just now";
    }
  }
  if (st.st_nlink != pack.links.size()) {
    return fmt::format(
        "{} of its {} names are not in an image of this store (a dump that is under "
        "way, or a copy by hard links elsewhere)",
        st.st_nlink - std::min<uint64_t>(st.st_nlink, pack.links.size()), st.st_nlink);
  }
  return {};
}

Status Collector::Collect(const SeenPack& pack) {
  if (!pack.unreadable.empty()) {
    Skip(pack, pack.unreadable);
    return {};
  }
  if (pack.all_needed) return {};
  const PackLink& link = pack.links.front();
  {
    // Without a lock: nearly all packs have nothing to be freed.
    auto unused = UnusedIn(link, pack.need);
    if (!unused && unused.error().code == Code::kNotFound) return {};  // deleted meanwhile
    if (!unused) {
      Skip(pack, unused.error().ToString());
      return {};
    }
    if (unused->empty()) return {};
  }
  STASIS_TRY(Step("lock " + pack.Path()));
  auto fd = OpenBeneath(link.image->folder.get(), link.path, O_RDWR);
  if (!fd) {
    Skip(pack, fd.error().ToString());
    return {};
  }
  if (TEMP_FAILURE_RETRY(::flock(fd->get(), LOCK_EX | LOCK_NB)) != 0) {
    bool busy = errno == EWOULDBLOCK;
    Skip(pack, busy ? "a dump is about to refer to it" : ErrnoError(errno, "lock").ToString(),
         busy);
    return {};
  }
  if (std::string why = WhyNot(pack, fd->get()); !why.empty()) {
    Skip(pack, std::move(why), /*busy=*/true);
    return {};
  }
  // By a descriptor of its own; it is the same file, and that is locked.
  STASIS_ASSIGN(auto unused, UnusedIn(link, pack.need));
  STASIS_TRY(Step("free " + pack.Path()));
  return Free(pack, fd->get(), WithoutHoles(fd->get(), unused));
}

// Each call may be the last: what is a hole is nobody's, and what is not yet one is found again by
// the next run.
Status Collector::Free(const SeenPack& pack, int fd, const std::vector<Piece>& pieces) {
  struct stat before;
  if (::fstat(fd, &before) != 0) return FailErrno(errno, "stat " + pack.Path());
  if (pieces.empty()) return {};
  uint64_t freed_blocks = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(pieces[i].offset),
                    static_cast<off_t>(pieces[i].bytes)) == 0) {
      freed_blocks += pieces[i].blocks;
      continue;
    }
    Skip(pack, errno == EOPNOTSUPP
                   ? "this file system cannot make holes in a file: the blocks go with the last "
                     "image that has this pack"
                   : ErrnoError(errno, "free blocks").ToString());
    for (; i < pieces.size(); ++i) report_.unused_bytes += pieces[i].bytes;
  }
  // The blocks that are needed were not written to: a later dump may go on trusting them.
  const timespec times[2] = {{0, UTIME_OMIT}, before.st_mtim};
  (void)::futimens(fd, times);
  struct stat after;
  if (::fstat(fd, &after) != 0) return FailErrno(errno, "stat " + pack.Path());
  report_.freed_blocks += freed_blocks;
  report_.freed_bytes +=
      static_cast<uint64_t>(std::max<int64_t>(before.st_blocks - after.st_blocks, 0)) * kStatBlock;
  return {};
}

}  // namespace

Result<GcReport> CollectGarbage(const std::string& store, const GcOptions& options) {
  return Annotate(Collector(AbsolutePath(store), options).Run(),
                  "free what no image needs in " + store);
}

}  // namespace stasis::store
