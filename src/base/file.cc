#include "base/file.h"

#include "base/stat.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <system_error>

namespace stasis {

Result<UniqueFd> OpenAt(int dir_fd, const std::string& path, int flags, mode_t mode) {
  int fd = TEMP_FAILURE_RETRY(::openat(dir_fd, path.c_str(), flags | O_CLOEXEC, mode));
  if (fd < 0) return FailErrno(errno, "open " + path);
  return UniqueFd(fd);
}

namespace {

Result<std::string> ReadFd(int fd, const std::string& path, size_t max_bytes) {
  std::string data;
  char buffer[1 << 16];
  for (;;) {
    ssize_t n = TEMP_FAILURE_RETRY(::read(fd, buffer, sizeof buffer));
    if (n < 0) return FailErrno(errno, "read " + path);
    if (n == 0) return data;
    data.append(buffer, static_cast<size_t>(n));
    if (data.size() > max_bytes) {
      return Fail(Code::kResourceExhausted,
                  path + " is longer than the " + std::to_string(max_bytes) + " bytes allowed");
    }
  }
}

std::string ParentOf(const std::string& path) {
  auto parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

Result<std::string> ReadFileAt(int dir_fd, const std::string& path, size_t max_bytes) {
  STASIS_ASSIGN(UniqueFd fd, OpenAt(dir_fd, path, O_RDONLY));
  return ReadFd(fd.get(), path, max_bytes);
}

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  return ReadFileAt(AT_FDCWD, path, max_bytes);
}

Status WriteAll(int fd, std::string_view data) {
  while (!data.empty()) {
    ssize_t n = TEMP_FAILURE_RETRY(::write(fd, data.data(), data.size()));
    if (n < 0) return FailErrno(errno, "write");
    data.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Status PreadAll(int fd, void* out, size_t size, uint64_t offset) {
  auto* at = static_cast<char*>(out);
  while (size > 0) {
    ssize_t n = TEMP_FAILURE_RETRY(::pread(fd, at, size, static_cast<off_t>(offset)));
    if (n < 0) return FailErrno(errno, "read");
    if (n == 0) return Fail(Code::kDataLoss, "the file ends too early");
    at += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
  return {};
}

namespace {

// `put` moves the temporary file to its final name. It returns 0, or -1 with errno.
Status WriteAside(const std::string& path, std::string_view data, bool durably,
                  const std::function<int(const char* temporary)>& put) {
  std::string temporary = path + ".XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return FailErrno(errno, "create " + temporary);
  Status status = WriteAll(fd.get(), data);
  if (status && durably && ::fsync(fd.get()) != 0) status = FailErrno(errno, "sync");
  if (status && put(temporary.c_str()) != 0) status = FailErrno(errno, "rename");
  ::unlink(temporary.c_str());
  if (!status) return Annotate(std::move(status), "write " + path);
  return durably ? FsyncPath(ParentOf(path)) : Status{};
}

}  // namespace

Status WriteFileDurably(const std::string& path, std::string_view data) {
  return WriteAside(path, data, /*durably=*/true,
                    [&](const char* file) { return ::rename(file, path.c_str()); });
}

Status ReplaceFile(const std::string& path, std::string_view data) {
  return WriteAside(path, data, /*durably=*/false,
                    [&](const char* file) { return ::rename(file, path.c_str()); });
}

Status WriteNewFileDurably(const std::string& path, std::string_view data) {
  return WriteAside(path, data, /*durably=*/true, [&](const char* file) {
    return ::link(file, path.c_str()) == 0 || errno == EEXIST ? 0 : -1;
  });
}

Status FsyncPath(const std::string& path) {
  STASIS_ASSIGN(UniqueFd fd, Open(path, O_RDONLY));
  if (::fsync(fd.get()) != 0) return FailErrno(errno, "sync " + path);
  return {};
}

Status MakeDirs(const std::string& path, mode_t mode) {
  if (path.empty() || PathExists(path)) return {};
  STASIS_TRY(MakeDirs(std::filesystem::path(path).parent_path().string(), mode));
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) return FailErrno(errno, "mkdir " + path);
  return {};
}

namespace {

std::vector<std::string> TakeNames(DIR* dir) {
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  return names;
}

// Works relative to open descriptors, so the removal stays inside the tree even if another process
// replaces a directory by a link meanwhile.
Status RemoveTreeAt(int dir_fd, const std::string& name, const std::string& path,
                    const std::function<void()>& removed) {
  if (::unlinkat(dir_fd, name.c_str(), 0) != 0) {
    const int why = errno;
    if (why == ENOENT) return {};
    if (why != EISDIR && why != EPERM) return FailErrno(why, "remove " + path);
    auto folder = OpenAt(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!folder && folder.error().raw == ENOENT) return {};
    if (!folder) return FailErrno(why, "remove " + path);
    DIR* dir = ::fdopendir(folder->get());
    if (dir == nullptr) return FailErrno(errno, "remove " + path);
    const int fd = folder->release();
    Status status;
    for (const std::string& inside : TakeNames(dir)) {
      status = RemoveTreeAt(fd, inside, path + "/" + inside, removed);
      if (!status) break;
    }
    ::closedir(dir);
    STASIS_TRY(std::move(status));
    if (::unlinkat(dir_fd, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
      return FailErrno(errno, "remove " + path);
    }
  }
  if (removed) removed();
  return {};
}

}  // namespace

Status RemoveFile(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FailErrno(errno, "remove " + path);
  return {};
}

Status RemoveTree(const std::string& path, const std::function<void()>& removed) {
  if (path.empty()) return {};
  return RemoveTreeAt(AT_FDCWD, path, path, removed);
}

bool PathExists(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0;
}

Result<std::vector<std::string>> ListDir(const std::string& path) {
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return FailErrno(errno, "list " + path);
  std::vector<std::string> names = TakeNames(dir);
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

bool StatWithoutSync(const std::string& path, struct stat* st) {
  struct statx found;
  if (::statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &found) != 0) {
    return false;
  }
  *st = {};
  st->st_dev = makedev(found.stx_dev_major, found.stx_dev_minor);
  st->st_ino = found.stx_ino;
  st->st_mode = found.stx_mode;
  st->st_nlink = found.stx_nlink;
  st->st_uid = found.stx_uid;
  st->st_gid = found.stx_gid;
  st->st_rdev = makedev(found.stx_rdev_major, found.stx_rdev_minor);
  st->st_size = static_cast<off_t>(found.stx_size);
  st->st_blksize = static_cast<blksize_t>(found.stx_blksize);
  st->st_blocks = static_cast<blkcnt_t>(found.stx_blocks);
  st->st_atim = {found.stx_atime.tv_sec, found.stx_atime.tv_nsec};
  st->st_mtim = {found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec};
  st->st_ctim = {found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec};
  return true;
}

Result<std::string> ReadLink(const std::string& path) {
  char buffer[PATH_MAX];
  ssize_t n = ::readlink(path.c_str(), buffer, sizeof buffer);
  if (n < 0) return FailErrno(errno, "read link " + path);
  return std::string(buffer, static_cast<size_t>(n));
}

Result<uint64_t> FreeBytes(const std::string& path) {
  struct statvfs st;
  if (::statvfs(path.c_str(), &st) != 0) return FailErrno(errno, "statvfs " + path);
  return static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
}

std::string ExistingPart(std::string path) {
  while (!path.empty() && !PathExists(path)) {
    const size_t at = path.rfind('/');
    path.resize(at == std::string::npos ? 0 : at);
  }
  return path.empty() ? "/" : path;
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

}  // namespace stasis
