#include "slurm/watch.h"

#include <limits.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>

namespace stasis::slurm {

Result<UniqueFd> Watch(const std::string& path, uint32_t events) {
  UniqueFd watch(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const bool has_instance = watch.valid();
  if (has_instance && ::inotify_add_watch(watch.get(), path.c_str(), events) >= 0) return watch;
  Error error = ErrnoError(errno, "watch " + path);
  if (!has_instance && error.raw == EMFILE) {
    error.hint =
        "raise fs.inotify.max_user_instances, the number of inotify instances of a user, or the "
        "limit on open files";
  }
  return Fail(std::move(error));
}

void ForgetEvents(const UniqueFd& watch) {
  char events[sizeof(inotify_event) + NAME_MAX + 1];
  while (::read(watch.get(), events, sizeof events) > 0) {
  }
}

}  // namespace stasis::slurm
