#include "jobs/locks.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"

namespace stasis::jobs {

Result<UniqueFd> LockFile(const std::string& path, int operation, int flags) {
  STASIS_ASSIGN(UniqueFd fd, Open(path, flags));
  if (TEMP_FAILURE_RETRY(::flock(fd.get(), operation)) != 0) {
    if (errno == EWOULDBLOCK) return Fail(Code::kAborted, path + " is locked");
    return FailErrno(errno, "lock " + path);
  }
  return fd;
}

Result<UniqueFd> LockStore(const std::string& folder) {
  return LockFile(folder + "/.lock", LOCK_EX, O_RDWR | O_CREAT);
}

}  // namespace stasis::jobs
