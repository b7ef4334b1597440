#include "shim/pid_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/fd.h"
#include "base/file.h"
#include "base/task_limits.h"

namespace stasis::shim {

Result<pid_t> ForkShim(bool new_pidns) {
  if (new_pidns && ::unshare(CLONE_NEWPID) != 0) return FailErrno(errno, "make a pid namespace");
  const pid_t pid = ::fork();
  if (pid < 0) return Fail(TaskError(errno, "fork"));
  return pid;
}

Result<pid_t> ReadOwnPid(int proc) {
  char text[16] = {};
  const ssize_t size = proc < 0 ? ::readlink("/proc/self", text, sizeof text - 1)
                                : ::readlinkat(proc, "self", text, sizeof text - 1);
  if (size <= 0) return FailErrno(errno, "read /proc/self");
  return std::atoi(text);
}

Status FurnishPidNamespace(pid_t first_pid) {
  if (::unshare(CLONE_NEWNS) != 0) return FailErrno(errno, "make a mount namespace");
  if (::mount(nullptr, "/", nullptr, MS_SLAVE | MS_REC, nullptr) != 0) {
    return FailErrno(errno, "stop the propagation of mounts");
  }
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    return FailErrno(errno, "mount /proc");
  }
  if (first_pid == 0) return {};
  STASIS_ASSIGN(UniqueFd last, Open("/proc/sys/kernel/ns_last_pid", O_WRONLY));
  return WriteAll(last.get(), std::to_string(first_pid - 1));
}

}  // namespace stasis::shim
