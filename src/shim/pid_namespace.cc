#include "shim/pid_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/fd.h"
#include "base/file.h"
#include "base/task_limits.h"

namespace stasis::shim {

Result<pid_t> ForkShim(bool new_pidns) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  if (new_pidns && ::unshare(CLONE_NEWPID) != 0) return FailErrno(errno, "make a pid namespace");
  pid_t pid = ::fork();
  if (pid < 0) return Fail(TaskError(errno, "fork"));
  if (pid > 0) {
    // Send the child its pid in the parent's namespace. In a new pid namespace its getpid() is 1.
    (void)!::write(write_end.get(), &pid, sizeof pid);
    return 0;
  }
  write_end.Reset();
  if (TEMP_FAILURE_RETRY(::read(read_end.get(), &pid, sizeof pid)) != sizeof pid) ::_exit(1);
  return pid;
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
