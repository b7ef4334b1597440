#include "shim/output_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/own_path.h"

namespace stasis::shim {
namespace {

// An open must neither acquire a controlling terminal nor wait for the reader of a pipe.
constexpr int kFlags = O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK;

bool CanBeLog(int fd, const struct stat& st) {
  return S_ISREG(st.st_mode) || (S_ISCHR(st.st_mode) && ::isatty(fd) == 0);
}

// Returns true if only this user and root can create names in the directory.
bool IsOursAlone(const struct stat& folder) {
  return folder.st_uid == ::geteuid() && (folder.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

Result<OutputLog> OutputLog::Open(const std::string& path) {
  return OpenBy(path, [&](int flags, mode_t mode) { return OpenOwn(path, flags, mode); });
}

Result<OutputLog> OutputLog::OpenJobs(const std::string& path) {
  const size_t slash = path.rfind('/');
  STASIS_ASSIGN(UniqueFd folder, stasis::Open(path.substr(0, slash), O_PATH | O_DIRECTORY));
  STASIS_ASSIGN(OutputLog log, OpenBy(path, [&](int flags, mode_t mode) {
                  return OpenAt(folder.get(), path.substr(slash + 1), flags | O_NOFOLLOW, mode);
                }));
  struct stat st, in;
  if (::fstat(log.fd(), &st) != 0 || ::fstat(folder.get(), &in) != 0) {
    return FailErrno(errno, "look at " + path);
  }
  if (!S_ISREG(st.st_mode)) return FailErrno(ENOTSUP, "open " + path);
  if (st.st_uid != ::geteuid()) return FailErrno(EPERM, "open " + path);
  if (st.st_nlink != 1 && !IsOursAlone(in)) return FailErrno(EMLINK, "open " + path);
  return log;
}

Result<OutputLog> OutputLog::OpenBy(const std::string& path, const Opener& open) {
  OutputLog log;
  log.path_ = path;
  auto fd = open(kFlags | O_CREAT | O_EXCL, 0666);
  log.created_ = fd.has_value();
  if (!fd && fd.error().raw == EEXIST) fd = open(kFlags, 0);
  // ENXIO means a pipe without a reader, or a socket.
  if (!fd && fd.error().raw == ENXIO) return FailErrno(ENOTSUP, "open " + path);
  if (!fd) return Fail(std::move(fd).error());
  log.fd_ = std::move(*fd);
  struct stat st;
  if (::fstat(log.fd(), &st) != 0) return FailErrno(errno, "look at " + path);
  if (!CanBeLog(log.fd(), st)) return FailErrno(ENOTSUP, "open " + path);
  log.id_ = FileId::Of(st);
  // Removes O_NONBLOCK: the program's own writes must block when necessary.
  if (::fcntl(log.fd(), F_SETFL, O_APPEND) != 0) return FailErrno(errno, "fcntl");
  return log;
}

std::string OutputLog::LastBytes() const {
  constexpr off_t kMost = 16 << 10;
  struct stat st;
  auto file = stasis::Open(path_, O_RDONLY | O_NOCTTY | O_NONBLOCK);
  if (!file || ::fstat(file->get(), &st) != 0 || !S_ISREG(st.st_mode)) return {};
  std::string bytes(static_cast<size_t>(std::min(st.st_size, kMost)), '\0');
  ssize_t n = ::pread(file->get(), bytes.data(), bytes.size(),
                      st.st_size - static_cast<off_t>(bytes.size()));
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  // The first line may be incomplete, or begin in the hole that LogBound has punched.
  if (st.st_size > kMost) bytes.erase(0, bytes.find('\n') + 1);
  return bytes;
}

void OutputLog::RemoveIfCreated() {
  if (created_) ::unlink(path_.c_str());
}

}  // namespace stasis::shim
