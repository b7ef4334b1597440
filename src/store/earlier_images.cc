#include "store/earlier_images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "store/beneath.h"
#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/store_folder.h"
#include "store/unit_names.h"

namespace stasis::store {

namespace {

// Older images are ignored. They have few units that newer ones lack, and reading each manifest
// takes time.
constexpr size_t kMaxImages = 128;  // their folders are kept open

// Packs of other users are never shared.
bool IsOurs(const struct stat& st) { return st.st_uid == ::geteuid(); }

// Returns whether the image was written with one of the keys. If there are no keys, every image is
// accepted.
bool IsByOne(const ImageReader& image, const std::vector<OriginKey>& origins) {
  return origins.empty() || std::any_of(origins.begin(), origins.end(), [&](const OriginKey& key) {
           return image.OriginBy(&key) == Origin::kOwn;
         });
}

}  // namespace

Result<EarlierImages> EarlierImages::Look(const std::string& store, const EarlierQuery& query) {
  EarlierImages earlier;
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
  newest.resize(std::min(newest.size(), BoundedByOpenFiles(kMaxImages)));

  for (auto& [time, name] : newest) {
    auto reader = ImageReader::Open(store + "/" + name, ImageReader::Deletion::kAllowed);
    if (!reader) continue;
    const Manifest& manifest = (*reader)->manifest();
    if (manifest.packs.empty() || manifest.job.uid != query.uid || !manifest.unit_naming ||
        manifest.unit_naming->function != kUnitNameFunction ||
        manifest.unit_naming->key_id != query.key_id) {
      continue;
    }
    if (!IsByOne(**reader, query.origins)) continue;
    UniqueFd folder(::fcntl((*reader)->dir_fd(), F_DUPFD_CLOEXEC, 0));
    if (!folder) break;  // the images found so far are enough
    bool is_this_jobs = !query.job_id.empty() && manifest.job.id == query.job_id;
    earlier.images_.push_back({std::move(name), std::move(folder), is_this_jobs, manifest});
  }
  std::stable_sort(earlier.images_.begin(), earlier.images_.end(),
                   [](const EarlierImage& a, const EarlierImage& b) {
                     if (a.is_this_jobs != b.is_this_jobs) return a.is_this_jobs;
                     return a.manifest.created_unix_ns > b.manifest.created_unix_ns;
                   });
  return earlier;
}

bool EarlierImages::IsStillThere(size_t index) const {
  return IsSameFolder(store_.get(), images_[index].name, images_[index].folder.get());
}

std::optional<EarlierPackFile> FindPackFile(const EarlierImage& image, const Pack& pack) {
  struct stat st;
  if (::fstatat(image.folder.get(), pack.path().c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISREG(st.st_mode) || !IsOurs(st) || static_cast<uint64_t>(st.st_size) != pack.size_bytes) {
    return std::nullopt;
  }
  constexpr uint64_t kStatBlock = 512;
  return EarlierPackFile{FileId::Of(st), static_cast<uint64_t>(st.st_blocks) * kStatBlock};
}

bool CannotShare(const Error& error) {
  constexpr int kNever[] = {EPERM, EXDEV, EMLINK, EOPNOTSUPP, ENOLCK, ENOSYS};
  return error.domain == Domain::kErrno &&
         std::find(std::begin(kNever), std::end(kNever), error.raw) != std::end(kNever);
}

bool IsDamage(const Error& error) {
  return error.code == Code::kDataLoss || (error.domain == Domain::kErrno && error.raw == EIO);
}

std::string DamagedNote(const EarlierImage& image, const Pack& pack, const Error& error) {
  return fmt::format(
      "image {} is damaged, so its {} was not used: {} (run `stasis image verify {}`)", image.name,
      pack.path(), error.ToString(), image.name);
}

}  // namespace stasis::store
