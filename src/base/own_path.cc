#include "base/own_path.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <deque>
#include <functional>
#include <sstream>

#include "base/file.h"

namespace stasis {
namespace {

constexpr int kMostLinks = 40;  // same as the kernel

bool IsTrusted(const struct stat& st) { return st.st_uid == 0 || st.st_uid == ::geteuid(); }

std::string Owner(const struct stat& st) { return "user " + std::to_string(st.st_uid); }

// Inserts the components of `path` before those not yet walked.
void Prepend(std::deque<std::string>& words, const std::string& path) {
  std::deque<std::string> more;
  std::istringstream stream(path);
  for (std::string word; std::getline(stream, word, '/');) {
    if (!word.empty() && word != ".") more.push_back(word);
  }
  words.insert(words.begin(), more.begin(), more.end());
}

// Reads the link `name`. Returns an empty string if it is not a link.
Result<std::string> Target(int folder, const std::string& name, const std::string& shown) {
  UniqueFd fd(::openat(folder, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!fd && errno == ENOENT) return std::string();
  if (!fd) return FailErrno(errno, "open " + shown);
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return FailErrno(errno, "stat " + shown);
  if (!S_ISLNK(st.st_mode)) return std::string();
  if (!IsTrusted(st)) {
    return Fail(Code::kPermissionDenied, Domain::kErrno, ELOOP,
                shown + " leads through a symbolic link of " + Owner(st),
                "that user could change the link: use a path without it");
  }
  struct statfs system;
  const bool digits = name.find_first_not_of("0123456789") == std::string::npos;
  if (digits && ::fstatfs(fd.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC) {
    return Fail(Code::kInvalidArgument, Domain::kErrno, EBADF,
                shown + " names an open descriptor of a process", "name the file itself");
  }
  char target[PATH_MAX];
  const ssize_t size = ::readlinkat(fd.get(), "", target, sizeof target - 1);
  if (size <= 0) return FailErrno(size == 0 ? ENOENT : errno, "read the link " + shown);
  return std::string(target, static_cast<size_t>(size));
}

// Calls `enter` for each directory on the path.
Result<OwnPlace> Walk(const std::string& path, const std::function<Status(int)>& enter) {
  std::deque<std::string> words;
  Prepend(words, AbsolutePath(path));
  OwnPlace place;
  STASIS_ASSIGN(place.folder, Open("/", O_PATH | O_DIRECTORY));
  place.name = ".";
  for (int links = 0; !words.empty();) {
    if (place.name != ".") {
      STASIS_ASSIGN(UniqueFd next,
                    OpenAt(place.folder.get(), place.name, O_PATH | O_DIRECTORY | O_NOFOLLOW));
      place.folder = std::move(next);
      if (enter) STASIS_TRY(enter(place.folder.get()));
    }
    place.name = words.front();
    words.pop_front();
    STASIS_ASSIGN(std::string target, Target(place.folder.get(), place.name, path));
    if (target.empty()) continue;
    if (++links > kMostLinks) return FailErrno(ELOOP, "open " + path);
    if (target.front() == '/') {
      STASIS_ASSIGN(place.folder, Open("/", O_PATH | O_DIRECTORY));
    }
    Prepend(words, target);
    place.name = ".";
  }
  return place;
}

}  // namespace

Result<OwnPlace> FindOwnPlace(const std::string& path) { return Walk(path, nullptr); }

Result<UniqueFd> OpenOwn(const std::string& path, int flags, mode_t mode) {
  STASIS_ASSIGN(OwnPlace place, FindOwnPlace(path));
  auto opened = OpenAt(place.folder.get(), place.name, flags | O_NOFOLLOW, mode);
  if (!opened) return FailErrno(static_cast<int>(opened.error().raw), "open " + path);
  struct stat st;
  if (::fstat(opened->get(), &st) != 0) return FailErrno(errno, "stat " + path);
  if (::geteuid() != 0 || !S_ISREG(st.st_mode) || st.st_nlink < 2 ||
      (flags & O_ACCMODE) == O_RDONLY) {
    return opened;
  }
  return Fail(Code::kPermissionDenied, Domain::kErrno, EMLINK,
              path + " has " + std::to_string(st.st_nlink) +
                  " hard links, so it may be another user's file too",
              "use a file with a single name");
}

Status CheckOwnFolder(const std::string& path) {
  auto look = [&](int folder) -> Status {
    struct stat st;
    if (::fstat(folder, &st) != 0) return FailErrno(errno, "stat " + path);
    const bool shared = (st.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (st.st_mode & S_ISVTX) == 0;
    if (IsTrusted(st) && !shared) return {};
    return Fail(
        Code::kPermissionDenied,
        path + " is in a folder of " + Owner(st) + (shared ? " that other users may write to" : ""),
        "another user could replace it: use a folder that only you can write to");
  };
  STASIS_ASSIGN(OwnPlace place, Walk(path, look));
  STASIS_ASSIGN(UniqueFd last,
                OpenAt(place.folder.get(), place.name, O_PATH | O_DIRECTORY | O_NOFOLLOW));
  return look(last.get());
}

}  // namespace stasis
