#include "ipc/helper_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"
#include "ipc/socket.h"

namespace stasis::ipc {

Result<HelperProcess> HelperProcess::Start(const HelperCommand& command, int listener) {
  STASIS_ASSIGN(SocketPair pair, MakeSocketPair());
  SpawnOptions spawn;
  spawn.argv = {command.program};
  spawn.argv.insert(spawn.argv.end(), command.arguments.begin(), command.arguments.end());
  spawn.env = command.environment;
  spawn.new_session = true;
  spawn.fds = {{kHelperSocketFd, pair.theirs.get()}};
  UniqueFd null;
  if (listener >= 0) {
    spawn.fds[kHelperListenFd] = listener;
    STASIS_ASSIGN(null, Open("/dev/null", O_WRONLY));
    spawn.fds[STDERR_FILENO] = null.get();
    spawn.working_directory = "/";
  } else if (command.lock_fd >= 0) {
    spawn.fds[kHelperLockFd] = command.lock_fd;
  }
  HelperProcess helper;
  STASIS_ASSIGN(helper.child_, Subprocess::Spawn(spawn));
  helper.pid_ = helper.child_->pid();
  helper.resident_ = listener >= 0;
  helper.socket_ = std::move(pair.ours);
  helper.pidfd_.Reset(::fcntl(helper.child_->pidfd(), F_DUPFD_CLOEXEC, 0));
  if (!helper.pidfd_) {
    const int error = errno;
    helper.child_->Kill(SIGKILL);
    (void)helper.child_->Wait();
    return FailErrno(error, "duplicate a descriptor");
  }
  return helper;
}

// Uses the pidfd, because another thread may have reaped the process and its pid may be reused.
void HelperProcess::Kill() const {
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

std::optional<std::string> HelperProcess::WaitEnd(const Deadline& deadline) {
  if (child_) {
    auto status = child_->Wait(deadline);
    if (!status) return std::nullopt;
    return DescribeWaitStatus(*status);
  }
  if (!AwaitReadable(pidfd_.get(), deadline)) return std::nullopt;
  return "has ended";
}

}  // namespace stasis::ipc
