#include "image/store_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "image/beneath.h"
#include "image/id128.h"
#include "image/limits.h"
#include "image/manifest_check.h"

namespace stasis::image {

namespace {

constexpr size_t kMaxImageNameBytes = 128;
constexpr char kPartial[] = "partial";
constexpr char kDeleted[] = "deleted";

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// .NAME.partial-HEX, .NAME.partial-HEX.late, .NAME.deleted-HEX: ours, and nobody else's.
bool IsHiddenName(std::string_view name) {
  constexpr std::string_view kLate = ".late";
  constexpr size_t kHexDigits = 16;
  if (name.empty() || name.front() != '.') return false;
  if (name.size() > kLate.size() && name.substr(name.size() - kLate.size()) == kLate) {
    name.remove_suffix(kLate.size());
  }
  if (name.size() < kHexDigits) return false;
  std::string_view hex = name.substr(name.size() - kHexDigits);
  name.remove_suffix(kHexDigits);
  if (hex.find_first_not_of("0123456789abcdef") != hex.npos) return false;
  for (const char* purpose : {kPartial, kDeleted}) {
    std::string marker = fmt::format(".{}-", purpose);
    if (name.size() > marker.size() + 1 && name.substr(name.size() - marker.size()) == marker) {
      return true;
    }
  }
  return false;
}

bool HasManifest(const std::string& folder) {
  struct stat st;
  return ::lstat((folder + "/" + kManifestName).c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

// A folder is deleted only when all that lies in it is what an image has.
Status CheckDeletable(int folder_fd, const std::string& path) {
  auto no_image = [&](const std::string& why) {
    return Fail(Code::kInvalidArgument, Domain::kImage, 0,
                fmt::format("{} is no image: {}", path, why),
                "Nothing was deleted. If it is to go all the same, use rm.");
  };
  STASIS_ASSIGN(auto entries, ListFolder(folder_fd));
  bool has_manifest = false;
  for (const Entry& entry : entries) {
    bool is_manifest = entry.name == kManifestName && entry.is_regular;
    bool is_part = entry.is_folder && std::find(std::begin(kFolders), std::end(kFolders),
                                                entry.name) != std::end(kFolders);
    has_manifest |= is_manifest;
    if (!is_manifest && !is_part) return no_image("it holds " + Printable(entry.name));
  }
  if (!has_manifest) return no_image(std::string("it has no ") + kManifestName);
  return {};
}

}  // namespace

namespace internal {

Status LockFolder(int folder_fd, LockKind kind, const std::string& what) {
  int operation = kind == LockKind::kShared ? LOCK_SH : LOCK_EX;
  if (TEMP_FAILURE_RETRY(::flock(folder_fd, operation | LOCK_NB)) == 0) return {};
  if (errno == EWOULDBLOCK) {
    return Fail(Code::kAborted, Domain::kImage, 0,
                what + (kind == LockKind::kShared ? " is being deleted" : " is in use"),
                "Try again when the other stasis has finished.");
  }
  if (kind == LockKind::kShared) return {};
  return FailErrno(errno, "lock " + what);
}

bool IsSameFolder(int parent_fd, const std::string& name, int folder_fd) {
  struct stat by_name;
  struct stat by_fd;
  return ::fstatat(parent_fd, name.c_str(), &by_name, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(folder_fd, &by_fd) == 0 && by_name.st_dev == by_fd.st_dev &&
         by_name.st_ino == by_fd.st_ino;
}

Status RenameNoReplace(int store_fd, const std::string& from, const std::string& to) {
  if (::renameat2(store_fd, from.c_str(), store_fd, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  // Some network file systems have no such flag. A plain rename of a folder replaces only an empty
  // folder, never an image.
  if (errno == EINVAL && ::renameat(store_fd, from.c_str(), store_fd, to.c_str()) == 0) return {};
  int failed = errno == ENOTEMPTY || errno == ENOTDIR ? EEXIST : errno;
  return FailErrno(failed, fmt::format("rename {} to {}", from, to));
}

Result<std::string> HiddenName(const std::string& name, const char* purpose) {
  STASIS_ASSIGN(Id128 random, Id128::Random());
  return fmt::format(".{}.{}-{}", name, purpose, random.Hex().substr(0, 16));
}

}  // namespace internal

Status CheckImageName(const std::string& name) {
  bool good = !name.empty() && name.size() <= kMaxImageNameBytes && IsNameChar(name.front()) &&
              std::all_of(name.begin(), name.end(),
                          [](char c) { return IsNameChar(c) || c == '.' || c == '_' || c == '-'; });
  if (good) return {};
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              "\"" + Printable(name) + "\" cannot be the name of an image",
              fmt::format("A name is 1 to {} letters, digits, '.', '_' and '-', and begins with a "
                          "letter or a digit.",
                          kMaxImageNameBytes));
}

Result<std::string> ResolveImage(const std::vector<std::string>& stores,
                                 const std::string& name_or_path) {
  std::error_code ignored;
  // A folder here that only happens to have an image's name does not hide the image.
  bool is_path = name_or_path.find('/') != std::string::npos || HasManifest(name_or_path);
  if (is_path) {
    if (std::filesystem::is_directory(name_or_path, ignored)) return AbsolutePath(name_or_path);
    return Fail(Code::kNotFound, Domain::kImage, 0,
                "there is no folder " + Printable(name_or_path, kMaxPathBytes));
  }
  STASIS_TRY(CheckImageName(name_or_path));
  for (const std::string& store : stores) {
    std::string path = store + "/" + name_or_path;
    if (std::filesystem::is_directory(path, ignored)) return AbsolutePath(path);
  }
  return Fail(Code::kNotFound, Domain::kImage, 0,
              fmt::format("there is no image {} in {}", name_or_path, fmt::join(stores, ", ")),
              "`stasis image ls` shows what there is; an image elsewhere is named by its path.");
}

Result<std::vector<std::string>> ListImages(const std::string& store) {
  if (!PathExists(store)) return std::vector<std::string>{};
  STASIS_ASSIGN(auto names, ListDir(store));
  std::erase_if(names, [&](const std::string& name) {
    return name.front() == '.' || !HasManifest(store + "/" + name);
  });
  return names;
}

Result<std::vector<std::string>> SweepPartials(const std::string& store) {
  std::vector<std::string> removed;
  Status first_failure;
  if (!PathExists(store)) return removed;
  STASIS_ASSIGN(UniqueFd store_fd, OpenFolder(store));
  STASIS_ASSIGN(auto names, ListDir(store));
  for (const std::string& name : names) {
    if (!IsHiddenName(name)) continue;
    auto folder = OpenBeneath(store_fd.get(), name, O_RDONLY | O_DIRECTORY);
    if (!folder) continue;  // gone meanwhile, or no folder and so not ours
    if (!internal::LockFolder(folder->get(), internal::LockKind::kExclusive, name)) continue;
    // Between the two calls its writer may have finished: then the name is another's, or nobody's.
    if (!internal::IsSameFolder(store_fd.get(), name, folder->get())) continue;
    Status gone = RemoveTree(store + "/" + name);
    if (gone) {
      removed.push_back(name);
    } else if (first_failure) {
      first_failure = std::move(gone);
    }
  }
  if (!first_failure) return Fail(std::move(first_failure.error()));
  return removed;
}

Status DeleteImage(const std::string& path,
                   const std::function<Status(std::string_view)>& before_step) {
  std::filesystem::path clean = AbsolutePath(path);
  if (!clean.has_filename()) clean = clean.parent_path();  // "IMAGE/"
  std::string store = clean.parent_path().string();
  std::string name = clean.filename().string();

  STASIS_ASSIGN(UniqueFd store_fd, OpenFolder(store));
  auto opened = OpenBeneath(store_fd.get(), name, O_RDONLY | O_DIRECTORY);
  if (!opened) {
    bool is_link = opened.error().raw == ELOOP;
    if (is_link) opened.error().message = path + " is a symbolic link; name the image itself";
    return Fail(std::move(opened.error()));
  }
  UniqueFd folder = std::move(*opened);
  STASIS_TRY(CheckDeletable(folder.get(), path));
  STASIS_TRY(internal::LockFolder(folder.get(), internal::LockKind::kExclusive, path));
  STASIS_ASSIGN(std::string hidden,
                internal::HiddenName(name.substr(0, kMaxImageNameBytes), kDeleted));
  if (before_step) STASIS_TRY(before_step("hide"));
  STASIS_TRY(internal::RenameNoReplace(store_fd.get(), name, hidden));
  if (::fsync(store_fd.get()) != 0) return FailErrno(errno, "sync " + store);
  if (before_step) STASIS_TRY(before_step("remove"));
  return RemoveTree(store + "/" + hidden);
}

Error WithSpaceHint(Error error, const std::string& path) {
  if (error.domain != Domain::kErrno || (error.raw != ENOSPC && error.raw != EDQUOT)) return error;
  if (auto free = FreeBytes(path)) {
    error.message += fmt::format(" ({} bytes are free on the file system of {})", *free, path);
  }
  return std::move(error).WithHint(
      "Free some space there, or dump to another file system with -d DIR.");
}

Status CheckSpace(const std::string& path, uint64_t needed_bytes) {
  STASIS_ASSIGN(uint64_t free, FreeBytes(path));
  if (free >= needed_bytes) return {};
  return Fail(Code::kResourceExhausted, Domain::kImage, 0,
              fmt::format("an image of about {} bytes does not fit into the {} bytes free on the "
                          "file system of {}",
                          needed_bytes, free, path),
              "Free some space there, or dump to another file system with -d DIR.");
}

}  // namespace stasis::image
