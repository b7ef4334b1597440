#include "store/earlier_blocks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "image/beneath.h"
#include "image/block_name.h"
#include "image/block_reader.h"
#include "image/image_folder.h"
#include "image/reader.h"
#include "store/store_folder.h"

namespace stasis::store {

using image::BlockReader;
using image::DeviceRange;
using image::Id128;
using image::ImageReader;
using image::kBlockNameFunction;
using image::kManifestName;
using image::Manifest;
using image::OpenFolder;
using image::Pack;

namespace {

// Older images than these hold little that the newer ones do not, and each costs its manifest.
constexpr size_t kMaxImages = 128;

// Nobody who cannot write our files can make us rely on his.
bool IsOurs(const struct stat& st) { return st.st_uid == ::geteuid(); }

}  // namespace

Result<EarlierBlocks> EarlierBlocks::Look(const std::string& store, const Query& query) {
  EarlierBlocks earlier;
  if (!PathExists(store)) return earlier;
  STASIS_ASSIGN(earlier.store_, OpenFolder(store));
  STASIS_ASSIGN(auto names, ListImages(store));

  std::vector<std::pair<int64_t, std::string>> newest;  // by the manifest's time
  for (std::string& name : names) {
    struct stat folder;
    struct stat manifest;
    if (::fstatat(earlier.store_.get(), name.c_str(), &folder, AT_SYMLINK_NOFOLLOW) != 0 ||
        ::fstatat(earlier.store_.get(), (name + "/" + kManifestName).c_str(), &manifest,
                  AT_SYMLINK_NOFOLLOW) != 0 ||
        !IsOurs(folder) || !IsOurs(manifest)) {
      continue;
    }
    newest.emplace_back(manifest.st_mtim.tv_sec, std::move(name));
  }
  std::sort(newest.begin(), newest.end(), std::greater<>());
  if (newest.size() > kMaxImages) newest.resize(kMaxImages);

  std::vector<Found> found;
  for (auto& [time, name] : newest) {
    auto reader = ImageReader::Open(store + "/" + name, ImageReader::Deletion::kAllowed);
    if (!reader) continue;
    const Manifest& manifest = (*reader)->manifest();
    if (manifest.packs.empty() || manifest.job.uid != query.uid || !manifest.block_naming ||
        manifest.block_naming->function != kBlockNameFunction ||
        manifest.block_naming->key_id != query.key_id) {
      continue;
    }
    UniqueFd folder(::fcntl((*reader)->dir_fd(), F_DUPFD_CLOEXEC, 0));
    if (!folder) break;  // what was found so far will do
    bool is_this_jobs = !query.job_id.empty() && manifest.job.id == query.job_id;
    found.push_back(
        {{std::move(name), std::move(folder), is_this_jobs, manifest.created_unix_ns}, manifest});
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    if (a.image.is_this_jobs != b.image.is_this_jobs) return a.image.is_this_jobs;
    return a.image.created_unix_ns > b.image.created_unix_ns;
  });
  for (Found& one : found) earlier.Take(std::move(one));
  return earlier;
}

// Its place among all packs; kNone when it is not there, or not ours.
uint32_t EarlierBlocks::TakePack(const Image& image, const Pack& pack) {
  struct stat st;
  if (::fstatat(image.folder.get(), pack.path().c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISREG(st.st_mode) || !IsOurs(st) || static_cast<uint64_t>(st.st_size) != pack.size_bytes) {
    return kNone;
  }
  auto [at, is_new] = pack_index_.emplace(pack.id, static_cast<uint32_t>(packs_.size()));
  if (is_new) {
    constexpr uint64_t kStatBlock = 512;
    packs_.push_back({pack, FileId::Of(st), static_cast<uint64_t>(st.st_blocks) * kStatBlock});
    return at->second;
  }
  // A copy of an image has packs of the same id that are other files: its own matter.
  const EarlierPack& known = packs_[at->second];
  bool same = known.file == FileId::Of(st) && known.pack.index_checksum == pack.index_checksum;
  return same ? at->second : kNone;
}

void EarlierBlocks::Take(Found found) {
  Image& image = found.image;
  std::vector<uint32_t> places;  // of this image's packs among all
  for (const Pack& pack : found.manifest.packs) {
    places.push_back(TakePack(image, pack));
    if (places.back() != kNone) image.checked_unix_ns[places.back()] = pack.checked_unix_ns;
  }
  for (const DeviceRange& range : found.manifest.ranges) {
    for (size_t i = 0; i < range.blocks.size(); ++i) {
      if (range.blocks[i].IsZero() || places[range.packs[i]] == kNone) continue;
      blocks_.try_emplace(range.blocks[i],
                          Block{static_cast<uint32_t>(images_.size()), places[range.packs[i]],
                                static_cast<uint32_t>(BlockReader::BlockBytes(range, i))});
    }
  }
  images_.push_back(std::move(image));
}

const EarlierBlocks::Block* EarlierBlocks::Find(const Id128& name, uint64_t logical_bytes) const {
  auto at = blocks_.find(name);
  return at == blocks_.end() || at->second.logical_bytes != logical_bytes ? nullptr : &at->second;
}

bool EarlierBlocks::IsStillThere(size_t image) const {
  return image::IsSameFolder(store_.get(), images_[image].name, images_[image].folder.get());
}

}  // namespace stasis::store
