#include "repository/sent_images.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/file.h"
#include "repository/images.h"
#include "repository/layout.h"
#include "store/beneath.h"

namespace stasis::repository {
namespace {

constexpr char kRepositoryFile[] = "repository";
constexpr size_t kMaxIdBytes = 100;

// Returns whether `image` is one of a migration: a number or "last" follows the prefix and "-".
bool IsSent(const std::string& prefix, std::string_view image) {
  if (!image.starts_with(prefix + "-")) return false;
  image.remove_prefix(prefix.size() + 1);
  const bool is_number = image.find_first_not_of("0123456789") == image.npos;
  return image == "last" || (!image.empty() && is_number);
}

// Deletes the images of a migration and adds their names to `deleted`.
Status DeleteSent(const Repository& repository, const std::string& prefix,
                  const objects::CallOptions& call, std::vector<std::string>& deleted) {
  STASIS_ASSIGN(const auto objects, repository.List(kImagesPrefix + prefix + "-", call));
  for (const auto& object : objects) {
    const auto name = ParseImageKey(object.key);
    if (!name || !IsSent(prefix, *name)) continue;
    Status gone = DeleteImage(repository, *name, call);
    if (!gone && gone.error().code != Code::kNotFound) return gone;
    deleted.push_back(*name);
  }
  return {};
}

// Returns the prefix of the images that a note is about.
std::string PrefixIn(const std::string& note) {
  return note.substr(1, note.rfind(fmt::format(".{}-", store::kSent)) - 1);
}

}  // namespace

Result<SentImages> SentImages::Begin(const std::string& store, const std::string& prefix,
                                     const Repository& repository) {
  STASIS_ASSIGN(store::Hidden note, store::MakeHidden(store, prefix, store::kSent));
  STASIS_TRY(WriteFileDurably(fmt::format("{}/{}/{}", store, note.name, kRepositoryFile),
                              repository.info().id.Hex()));
  STASIS_TRY(FsyncPath(store));
  return SentImages(store, prefix, std::move(note));
}

Status SentImages::Delete(const Repository& repository, const objects::CallOptions& call) {
  std::vector<std::string> deleted;
  STASIS_TRY(DeleteSent(repository, prefix_, call, deleted));
  STASIS_ASSIGN(const UniqueFd folder, store::OpenFolder(store_));
  return store::RemoveHidden(folder.get(), store_, note_.name);
}

Result<std::vector<std::string>> SweepSentImages(const std::string& store,
                                                 const Repository& repository,
                                                 const objects::CallOptions& call) {
  std::vector<std::string> deleted;
  if (!PathExists(store)) return deleted;
  STASIS_ASSIGN(const UniqueFd store_fd, store::OpenFolder(store));
  STASIS_ASSIGN(const auto names, ListDir(store));
  for (const std::string& name : names) {
    if (!store::IsHiddenName(name, store::kSent)) continue;
    const auto note = store::OpenBeneath(store_fd.get(), name, O_RDONLY | O_DIRECTORY);
    if (!note || !store::LockFolder(note->get(), store::LockKind::kExclusive, name)) continue;
    if (!store::IsSameFolder(store_fd.get(), name, note->get())) continue;
    const auto id = ReadFileAt(note->get(), kRepositoryFile, kMaxIdBytes);
    // Without its file, the note was left before the first push.
    const bool is_empty = !id && id.error().code == Code::kNotFound;
    if (!is_empty && (!id || *id != repository.info().id.Hex())) continue;
    if (!is_empty) STASIS_TRY(DeleteSent(repository, PrefixIn(name), call, deleted));
    STASIS_TRY(store::RemoveHidden(store_fd.get(), store, name));
  }
  return deleted;
}

}  // namespace stasis::repository
