#include "store/image_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/file.h"
#include "base/id128.h"
#include "store/beneath.h"
#include "store/limits.h"
#include "store/manifest_check.h"

namespace stasis::store {

namespace {

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

bool IsHiddenName(std::string_view name, std::string_view wanted) {
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
  for (const char* purpose : {kPartial, kDeleted, kCpuFiles, kMoving, kSent}) {
    if (wanted.empty() ? purpose == kSent : purpose != wanted) continue;
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

Status LockFolder(int folder_fd, LockKind kind, const std::string& what) {
  int operation = kind == LockKind::kShared ? LOCK_SH : LOCK_EX;
  if (TEMP_FAILURE_RETRY(::flock(folder_fd, operation | LOCK_NB)) == 0) return {};
  if (errno == EWOULDBLOCK) {
    return Fail(Code::kAborted, Domain::kImage, 0,
                what + (kind == LockKind::kShared ? " is being deleted" : " is in use"),
                "Try again when the other stasis command has finished.");
  }
  if (kind == LockKind::kShared) return {};
  return FailErrno(errno, "lock " + what);
}

bool IsSameFolder(int parent_fd, const std::string& name, int folder_fd) {
  struct stat by_name, by_fd;
  return ::fstatat(parent_fd, name.c_str(), &by_name, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(folder_fd, &by_fd) == 0 && FileId::Of(by_name) == FileId::Of(by_fd);
}

Status RenameNoReplace(int store_fd, const std::string& from, const std::string& to) {
  if (::renameat2(store_fd, from.c_str(), store_fd, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  // Some network file systems do not support RENAME_NOREPLACE. A plain rename of a folder replaces
  // only an empty folder, never an image.
  if (errno == EINVAL && ::renameat(store_fd, from.c_str(), store_fd, to.c_str()) == 0) return {};
  const bool taken = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR;
  Error error = ErrnoError(taken ? EEXIST : errno, fmt::format("rename {} to {}", from, to));
  if (taken) error.code = Code::kAlreadyExists;
  return Fail(std::move(error));
}

Result<std::string> HiddenName(const std::string& name, const char* purpose) {
  STASIS_ASSIGN(Id128 random, Id128::Random());
  return fmt::format(".{}.{}-{}", name, purpose, random.Hex().substr(0, 16));
}

Result<Hidden> MakeHidden(const std::string& store, const std::string& name, const char* purpose,
                          const std::function<Status(const std::string& path)>& before) {
  STASIS_ASSIGN(UniqueFd store_fd, OpenFolder(store));
  // A sweep may remove the folder between its creation and its lock; then try again.
  for (;;) {
    Hidden hidden;
    STASIS_ASSIGN(hidden.name, HiddenName(name, purpose));
    const std::string path = store + "/" + hidden.name;
    if (before) STASIS_TRY(before(path));
    if (::mkdirat(store_fd.get(), hidden.name.c_str(), 0700) != 0) {
      return FailErrno(errno, "make folder " + path);
    }
    auto folder = OpenBeneath(store_fd.get(), hidden.name, O_RDONLY | O_DIRECTORY);
    if (!folder && folder.error().code == Code::kNotFound) continue;
    if (!folder) return Fail(std::move(folder.error()));
    if (!LockFolder(folder->get(), LockKind::kShared, hidden.name)) continue;
    if (!IsSameFolder(store_fd.get(), hidden.name, folder->get())) continue;
    hidden.fd = std::move(*folder);
    return hidden;
  }
}

Status CheckImageName(const std::string& name) {
  bool good = !name.empty() && name.size() <= kMaxImageNameBytes && IsNameChar(name.front()) &&
              std::all_of(name.begin(), name.end(),
                          [](char c) { return IsNameChar(c) || c == '.' || c == '_' || c == '-'; });
  if (good) return {};
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              "\"" + Printable(name) + "\" is not a valid name of an image",
              fmt::format("A name is 1 to {} letters, digits, '.', '_' and '-', and begins with a "
                          "letter or a digit.",
                          kMaxImageNameBytes));
}

Status RemoveHidden(int store_fd, const std::string& store, const std::string& name,
                    const std::function<void()>& removed) {
  if (::fsync(store_fd) != 0) return FailErrno(errno, "sync " + store);
  return RemoveTree(store + "/" + name, removed);
}

size_t BoundedByOpenFiles(size_t most) {
  constexpr rlim_t kParts = 8;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return most;
  return std::min<rlim_t>(most, limit.rlim_cur / kParts);
}

Error WithSpaceHint(Error error, const std::string& path) {
  if (error.domain != Domain::kErrno || (error.raw != ENOSPC && error.raw != EDQUOT)) return error;
  if (auto free = FreeBytes(path)) {
    error.message += fmt::format(" ({} bytes are free on the file system of {})", *free, path);
  }
  return std::move(error).WithHint(
      "Free some space there (`stasis image delete` and `stasis image gc` free space that images "
      "take), or dump to another file system with -d DIR.");
}

}  // namespace stasis::store
