#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

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

// `put` gives the temporary file its name: 0, or -1 with errno.
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

Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return FailErrno(error.value(), "remove " + path);
  return {};
}

bool PathExists(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0;
}

Result<std::vector<std::string>> ListDir(const std::string& path) {
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return FailErrno(errno, "list " + path);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
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
