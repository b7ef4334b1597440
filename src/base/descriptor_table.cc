#include "base/descriptor_table.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fd.h"

namespace stasis {

std::optional<uint64_t> RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  return before;
}

int DuplicateAbove(int fd, int lowest) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, lowest);
  if (copy < 0 && errno == EINVAL) errno = EMFILE;
  return copy;
}

int DuplicateAs(int fd, int number) {
  const int copy = ::dup2(fd, number);
  if (copy < 0 && errno == EBADF) errno = EMFILE;
  return copy;
}

// The kernel never shrinks the table. A failure is harmless: later growth is delayed as it would be
// without this call.
void WidenDescriptorTable(int descriptors) {
  rlimit before{};
  if (::getrlimit(RLIMIT_NOFILE, &before) != 0) return;
  rlimit limit = before;
  limit.rlim_cur =
      std::min(std::max(limit.rlim_cur, static_cast<rlim_t>(descriptors)), limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  UniqueFd file(::open("/", O_PATH | O_CLOEXEC));
  const rlim_t highest = std::min(limit.rlim_cur, static_cast<rlim_t>(descriptors)) - 1;
  UniqueFd high(::fcntl(file.get(), F_DUPFD_CLOEXEC, static_cast<int>(highest)));
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace stasis
