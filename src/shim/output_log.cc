#include "shim/output_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace stasis::shim {
namespace {

// Not a terminal that becomes ours, and never a wait for the reader of a pipe.
constexpr int kFlags = O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK;

bool CanBeLog(int fd, const struct stat& st) {
  return S_ISREG(st.st_mode) || (S_ISCHR(st.st_mode) && ::isatty(fd) == 0);
}

}  // namespace

Result<OutputLog> OutputLog::Open(const std::string& path) {
  OutputLog log;
  log.path_ = path;
  auto fd = stasis::Open(path, kFlags | O_CREAT | O_EXCL, 0666);
  log.created_ = fd.has_value();
  if (!fd && fd.error().raw == EEXIST) fd = stasis::Open(path, kFlags);
  // A pipe without a reader, or a socket.
  if (!fd && fd.error().raw == ENXIO) return FailErrno(ENOTSUP, "open " + path);
  if (!fd) return Fail(std::move(fd).error());
  log.fd_ = std::move(*fd);
  struct stat st;
  if (::fstat(log.fd(), &st) != 0) return FailErrno(errno, "look at " + path);
  if (!CanBeLog(log.fd(), st)) return FailErrno(ENOTSUP, "open " + path);
  log.id_ = FileId::Of(st);
  // The program's own writes wait where they have to.
  if (::fcntl(log.fd(), F_SETFL, O_APPEND) != 0) return FailErrno(errno, "fcntl");
  return log;
}

void OutputLog::RemoveIfCreated() {
  if (created_) ::unlink(path_.c_str());
}

}  // namespace stasis::shim
