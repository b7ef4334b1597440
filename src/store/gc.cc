#include "store/gc.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <iterator>
#include <map>
#include <memory>
#include <set>

#include "base/descriptor_table.h"
#include "base/file.h"
#include "store/beneath.h"
#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/pack_index.h"
#include "store/store_folder.h"

namespace stasis::store {

namespace {

constexpr uint64_t kStatBlock = 512;

// An image that was found. Its folder stays open, so that a new image of the same name cannot be
// mistaken for it. Its manifest is not kept: it may have 64 MiB, and a store thousands of images.
struct SeenImage {
  std::string name;
  UniqueFd folder;
};

// Numbers of units of a pack, as intervals that neither touch nor overlap: begin -> end.
class UnitSet {
 public:
  void Add(uint64_t begin, uint64_t end) {
    assert(begin <= end);
    if (begin == end) return;
    auto at = units_.upper_bound(begin);
    if (at != units_.begin() && std::prev(at)->second >= begin) {
      --at;
      begin = at->first;
    }
    while (at != units_.end() && at->first <= end) {
      end = std::max(end, at->second);
      at = units_.erase(at);
    }
    units_.emplace_hint(at, begin, end);
  }
  const std::map<uint64_t, uint64_t>& intervals() const { return units_; }

 private:
  std::map<uint64_t, uint64_t> units_;
};

// One hard link to a pack.
struct PackLink {
  const SeenImage* image;
  std::string path;  // below the image
};

// A pack file, with all its hard links in the store.
struct SeenPack {
  std::vector<PackLink> links;
  UnitSet needed;           // by the images that were read
  bool all_needed = false;  // an image has the file, but its manifest does not list it
  std::string unreadable;   // why the needed units are unknown; empty if they are known
  std::string Path() const { return links.front().image->name + "/" + links.front().path; }
};

// A part of a pack that no image needs, and the number of its units.
struct Piece {
  uint64_t offset;
  uint64_t bytes;
  uint64_t units;
};

// Appends a piece, or extends the last one if the two are adjacent.
void AddPiece(std::vector<Piece>& pieces, const Piece& piece) {
  if (piece.bytes == 0) return;
  if (!pieces.empty() && pieces.back().offset + pieces.back().bytes == piece.offset) {
    pieces.back().bytes += piece.bytes;
    pieces.back().units += piece.units;
  } else {
    pieces.push_back(piece);
  }
}

// Returns the parts of a pack that no image needs, including existing holes. Compressed extents are
// freed as a whole, others unit by unit. Bytes between extents are never needed.
Result<std::vector<Piece>> UnusedIn(int fd, const std::string& path, const UnitSet& needed_units) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return FailErrno(errno, "stat " + path);
  STASIS_ASSIGN(const PackIndex index, ReadPackIndex(fd, static_cast<uint64_t>(st.st_size), path));
  std::vector<bool> needed(index.units.size());
  for (const auto& [first, last] : needed_units.intervals()) {
    for (uint64_t unit = first; unit < std::min<uint64_t>(last, needed.size()); ++unit) {
      needed[unit] = true;
    }
  }
  std::vector<Piece> pieces;
  auto add_gap = [&](uint64_t begin, uint64_t end) {
    AddPiece(pieces, {begin, end - begin, (end - begin) / index.unit_bytes});
  };
  uint64_t end = 0;
  for (const Extent& extent : index.extents) {
    add_gap(end, extent.offset);
    end = extent.end();
    const auto begin = needed.begin() + extent.first;
    if (extent.is_compressed()) {
      if (std::none_of(begin, begin + extent.units, [](bool one) { return one; })) {
        AddPiece(pieces, {extent.offset, extent.padded_bytes(), extent.units});
      }
      continue;
    }
    for (uint32_t i = 0; i < extent.units; ++i) {
      if (begin[i]) continue;
      const uint64_t at = extent.offset + uint64_t{i} * index.unit_bytes;
      AddPiece(pieces, {at, std::min<uint64_t>(index.unit_bytes, end - at), 1});
    }
  }
  add_gap(end, index.body_bytes);
  return pieces;
}

// Returns the parts of `pieces` that are not yet holes, in one pass over the file.
std::vector<Piece> WithoutHoles(int fd, const std::vector<Piece>& pieces) {
  assert(std::is_sorted(pieces.begin(), pieces.end(),
                        [](const Piece& a, const Piece& b) { return a.offset < b.offset; }));
  std::vector<Piece> left;
  for (const Piece& piece : pieces) {
    const uint64_t end = piece.offset + piece.bytes;
    uint64_t at = piece.offset;
    while (at < end) {
      const off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
      if (data < 0 && errno == ENXIO) break;  // only a hole is left
      const uint64_t begin = data < 0 ? at : static_cast<uint64_t>(data);
      if (begin >= end) break;
      const off_t hole = ::lseek(fd, static_cast<off_t>(begin), SEEK_HOLE);
      at = hole < 0 ? end : std::min(end, static_cast<uint64_t>(hole));
      // The number of units is an estimate, because they may have different lengths.
      const uint64_t units = piece.units * (at - begin) / piece.bytes;
      left.push_back({begin, at - begin, std::max<uint64_t>(1, units)});
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
  Status Skip(const SeenPack& pack, std::string why, bool busy = false) {
    report_.skipped.push_back({pack.Path(), std::move(why), busy});
    return {};
  }

  const std::string store_;
  const GcOptions& options_;
  UniqueFd store_fd_;
  std::vector<std::unique_ptr<SeenImage>> images_;
  std::map<FileId, SeenPack> packs_;
  GcReport report_;
};

Result<GcReport> Collector::Run() {
  STASIS_ASSIGN(store_fd_, OpenFolder(store_));
  STASIS_TRY(Step("sweep"));
  STASIS_ASSIGN(report_.swept, SweepPartials(store_));
  STASIS_TRY(Step("read the images"));
  (void)RaiseDescriptorLimit();
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
    // The image was deleted meanwhile, is a symbolic link, or belongs to another user. Its packs
    // have more hard links than are found here, so they are left alone.
    if (!folder) continue;
    image->folder = std::move(*folder);
    // The packs of this image by path. The image's manifest is freed at the end of this iteration,
    // so only one manifest is in memory at a time.
    std::map<std::string, SeenPack*> packs_here;
    auto reader = ImageReader::Open(store_ + "/" + image->name, ImageReader::Deletion::kAllowed);
    auto fd = OpenBeneath(image->folder.get(), kPacksFolder, O_RDONLY | O_DIRECTORY);
    std::vector<Entry> files;
    if (fd) {
      STASIS_ASSIGN(files, ListFolder(fd->get()));
    }
    for (const Entry& file : files) {
      struct stat st;
      if (!file.is_regular ||
          ::fstatat(fd->get(), file.name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) {
        continue;
      }
      SeenPack& pack = packs_[FileId::Of(st)];
      pack.links.push_back({image.get(), std::string(kPacksFolder) + "/" + file.name});
      packs_here[pack.links.back().path] = &pack;
      if (!reader && pack.unreadable.empty()) {
        pack.unreadable = "the units that image " + image->name +
                          " needs are unknown: " + reader.error().ToString();
      }
    }
    if (reader) AddNeeds((*reader)->manifest(), packs_here);
    images_.push_back(std::move(image));
  }
  return {};
}

// Records in each pack of an image which units the image needs. Reads the image's references only
// once for all packs.
void Collector::AddNeeds(const Manifest& manifest, const std::map<std::string, SeenPack*>& packs) {
  std::vector<SeenPack*> seen(manifest.packs.size());  // nullptr: the file is missing
  std::set<std::string> listed;
  for (size_t i = 0; i < manifest.packs.size(); ++i) {
    const std::string path = manifest.packs[i].path();
    listed.insert(path);
    if (auto pack = packs.find(path); pack != packs.end()) seen[i] = pack->second;
  }
  for (const auto& [path, pack] : packs) {
    if (!listed.contains(path)) pack->all_needed = true;
  }
  auto add = [&](const std::vector<UnitRun>& runs) {
    for (const UnitRun& run : runs) {
      ++report_.references;
      if (run.is_zero() || seen[run.pack] == nullptr) continue;
      seen[run.pack]->needed.Add(run.first, uint64_t{run.first} + run.units);
    }
  };
  for (const DeviceRange& range : manifest.ranges) add(range.runs);
  for (const PageFile& file : manifest.page_files) add(file.runs);
}

// Returns why the pack must not be changed, or an empty string. Called with the exclusive lock. The
// references that were read before may be incomplete or outdated:
//  - a dump that has referred to the pack since then has added a hard link;
//  - an image that was deleted has removed its hard link, even if a new image has its name.
std::string Collector::WhyNot(const SeenPack& pack, int fd) const {
  struct stat st;
  if (::fstat(fd, &st) != 0) return ErrnoError(errno, "stat").ToString();
  for (const PackLink& link : pack.links) {
    struct stat by_name;
    if (::fstatat(link.image->folder.get(), link.path.c_str(), &by_name, AT_SYMLINK_NOFOLLOW) !=
            0 ||
        FileId::Of(by_name) != FileId::Of(st)) {
      return "an image that shares it was just deleted";
    }
  }
  if (st.st_nlink != pack.links.size()) {
    return fmt::format(
        "{} of its {} hard links are not in an image of this store (a dump is running, or there is "
        "a copy by hard links elsewhere)",
        st.st_nlink - std::min<uint64_t>(st.st_nlink, pack.links.size()), st.st_nlink);
  }
  return {};
}

Status Collector::Collect(const SeenPack& pack) {
  if (!pack.unreadable.empty()) return Skip(pack, pack.unreadable);
  if (pack.all_needed) return {};
  const PackLink& link = pack.links.front();
  {
    // Look without the lock first: nearly all packs have nothing to free.
    auto opened = OpenRegular(link.image->folder.get(), link.path);
    if (!opened && opened.error().code == Code::kNotFound) return {};  // deleted meanwhile
    if (!opened) return Skip(pack, opened.error().ToString());
    auto unused = UnusedIn(opened->fd.get(), link.path, pack.needed);
    if (!unused) return Skip(pack, unused.error().ToString());
    if (unused->empty()) return {};
  }
  STASIS_TRY(Step("lock " + pack.Path()));
  auto fd = OpenBeneath(link.image->folder.get(), link.path, O_RDWR);
  if (!fd) return Skip(pack, fd.error().ToString());
  if (TEMP_FAILURE_RETRY(::flock(fd->get(), LOCK_EX | LOCK_NB)) != 0) {
    bool busy = errno == EWOULDBLOCK;
    return Skip(pack, busy ? "a running dump uses it" : ErrnoError(errno, "lock").ToString(), busy);
  }
  if (std::string why = WhyNot(pack, fd->get()); !why.empty()) {
    return Skip(pack, std::move(why), /*busy=*/true);
  }
  // Read through the locked descriptor, not the path: the image may be deleted at any time, and
  // that must not make gc fail.
  auto unused = UnusedIn(fd->get(), link.path, pack.needed);
  if (!unused) return Skip(pack, unused.error().ToString());
  STASIS_TRY(Step("free " + pack.Path()));
  return Free(pack, fd->get(), WithoutHoles(fd->get(), *unused));
}

// The process may be killed between any two calls: no image needs the freed pieces, and the next
// run frees the others.
Status Collector::Free(const SeenPack& pack, int fd, const std::vector<Piece>& pieces) {
  struct stat before;
  if (::fstat(fd, &before) != 0) return FailErrno(errno, "stat " + pack.Path());
  if (pieces.empty()) return {};
  uint64_t freed_units = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(pieces[i].offset),
                    static_cast<off_t>(pieces[i].bytes)) == 0) {
      freed_units += pieces[i].units;
      continue;
    }
    (void)Skip(pack,
               errno == EOPNOTSUPP
                   ? "this file system cannot punch holes into files: the space is freed when the "
                     "last image that shares the pack is deleted"
                   : ErrnoError(errno, "free units").ToString());
    for (; i < pieces.size(); ++i) report_.unused_bytes += pieces[i].bytes;
  }
  // Restore the modification time. The needed units have not changed, and with a newer time later
  // dumps would read and check them again.
  const timespec times[2] = {{0, UTIME_OMIT}, before.st_mtim};
  (void)::futimens(fd, times);
  struct stat after;
  if (::fstat(fd, &after) != 0) return FailErrno(errno, "stat " + pack.Path());
  report_.freed_units += freed_units;
  report_.freed_bytes +=
      static_cast<uint64_t>(std::max<int64_t>(before.st_blocks - after.st_blocks, 0)) * kStatBlock;
  return {};
}

}  // namespace

Result<GcReport> CollectGarbage(const std::string& store, const GcOptions& options) {
  return Annotate(Collector(AbsolutePath(store), options).Run(), "collect garbage in " + store);
}

}  // namespace stasis::store
