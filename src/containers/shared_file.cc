#include "containers/shared_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/file.h"

namespace stasis::containers {
namespace {

constexpr size_t kMaxBytes = 1u << 20;

// Follows symbolic links and returns the path of the file, or `path` itself if it does not exist.
std::string Resolved(const std::string& path) {
  std::error_code error;
  auto real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

Status Prepare(int fd, const std::string& content, const struct stat* before) {
  STASIS_TRY(WriteAll(fd, content));
  if (::fchmod(fd, before == nullptr ? 0644 : before->st_mode & 07777) != 0) {
    return FailErrno(errno, "set its mode");
  }
  if (before != nullptr && ::fchown(fd, before->st_uid, before->st_gid) != 0) {
    return FailErrno(errno, "set its owner");
  }
  if (::fsync(fd) != 0) return FailErrno(errno, "sync");
  return {};
}

}  // namespace

Result<std::string> ReadSharedFile(const std::string& path) {
  auto text = ReadFile(path, kMaxBytes);
  if (!text && text.error().domain == Domain::kErrno &&
      (text.error().raw == ENOENT || text.error().raw == ENOTDIR)) {
    return std::string();
  }
  return text;
}

Status WriteSharedFile(const std::string& path, const std::string& content) {
  const std::string file = Resolved(path);
  const std::string folder = std::filesystem::path(file).parent_path();
  STASIS_TRY(Annotate(MakeDirs(folder, 0755), "write " + path));
  struct stat before;
  const bool exists = ::stat(file.c_str(), &before) == 0;
  if (exists && !S_ISREG(before.st_mode)) {
    return Fail(Code::kFailedPrecondition, path + " is not a file");
  }
  std::string temporary = folder + "/.stasis-XXXXXX";
  UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) return FailErrno(errno, "write " + path);
  Status status = Prepare(fd.get(), content, exists ? &before : nullptr);
  if (status && ::rename(temporary.c_str(), file.c_str()) != 0) {
    status = FailErrno(errno, "rename");
  }
  if (!status) {
    ::unlink(temporary.c_str());
    return Annotate(std::move(status), "write " + path);
  }
  return FsyncPath(folder);
}

Status RemoveSharedFile(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
    return FailErrno(errno, "remove " + path);
  }
  return {};
}

}  // namespace stasis::containers
