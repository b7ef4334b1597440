#include "device/hip/queues.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "abi/driver_kinds.h"
#include "base/bounded.h"
#include "base/fd.h"
#include "base/install_layout.h"
#include "base/subprocess.h"

namespace stasis::device::hip {
namespace {

// kfd_ioctl_criu_args of linux/kfd_ioctl.h, with the operation that needs no other member.
struct KfdCriuArguments {
  uint64_t devices, bos, private_data, private_data_bytes;
  uint32_t device_count, bo_count, object_count, pid;
  uint32_t op;
};
constexpr unsigned long kCriuOp = _IOWR('K', 0x22, KfdCriuArguments);
constexpr uint32_t kUnpause = 2;

int UnpauseKfd(int fd) {
  KfdCriuArguments arguments{};
  arguments.op = kUnpause;
  return ::ioctl(fd, kCriuOp, &arguments) == 0 ? 0 : errno;
}

// Runs in a child process, because a process that waits for a hung GPU cannot be interrupted. The
// trace ends with the child, and does not stop the process.
Result<std::string> Unpause(process::HostPid pid, const std::vector<int>& fds, const Kfd& kfd,
                            const NoteStep& note) {
  // The kernel accepts the ioctl only from the thread that traces the process's first thread.
  note("trace it");
  if (::ptrace(PTRACE_SEIZE, pid.value, nullptr, nullptr) != 0) {
    if (errno == ESRCH) return std::string();
    return FailErrno(errno, "trace it");
  }
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid.value, 0)));
  if (!process) return FailErrno(errno, "pidfd_open");
  Result<std::string> last = std::string();
  for (int fd : fds) {
    UniqueFd device(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
    if (!device) {
      last = FailErrno(errno, "duplicate its " + kfd.device);
      continue;
    }
    note("the operation UNPAUSE of " + kfd.device);
    const int failed = (kfd.unpause != nullptr ? kfd.unpause : UnpauseKfd)(device.get());
    if (failed == 0) return std::string();
    // The kernel also returns EINVAL for a descriptor that was inherited from another process.
    if (failed != EINVAL) last = FailErrno(failed, "the operation UNPAUSE of " + kfd.device);
  }
  return last;
}

// Runs the program that takes the kernel driver's place.
Status RunProgram(process::HostPid pid, const std::string& name, const Deadline& deadline) {
  auto program = LibexecProgram(name);
  // An installation for hardware does not need it.
  if (!program && program.error().code == Code::kNotFound) return {};
  if (!program) return Fail(std::move(program).error());
  SpawnOptions spawn;
  spawn.argv = {*program, std::to_string(pid.value)};
  spawn.env = ScrubbedEnvironment();
  spawn.die_with_parent = true;
  STASIS_ASSIGN(Subprocess child, Subprocess::Spawn(spawn));
  auto status = child.Wait(deadline);
  if (!status) {
    child.Kill(SIGKILL);
    (void)child.Wait();
    return Fail(std::move(status).error());
  }
  if (*status == 0) return {};
  return Fail(Code::kInternal, name + " " + DescribeWaitStatus(*status));
}

constexpr char kMayBeStopped[] = "its GPU queues may still be stopped by CRIU's plugin";

}  // namespace

Result<bool> ContinueQueuesOf(process::HostPid pid, const Kfd& kfd, const Deadline& deadline) {
  auto files = process::ReadOpenFiles(pid);
  if (!files && files.error().code == Code::kNotFound) return false;
  if (!files) return Fail(std::move(files).error());
  std::vector<int> fds;
  for (const auto& file : *files) {
    if (file.target == kfd.device) fds.push_back(file.fd);
  }
  if (fds.empty()) return false;
  STASIS_TRY(
      AskBounded([&](const NoteStep& note) { return Unpause(pid, fds, kfd, note); }, deadline));
  return true;
}

Status ContinueQueues(process::HostPid pid, const Deadline& deadline) {
  STASIS_ASSIGN(const bool hardware, Annotate(ContinueQueuesOf(pid, {}, deadline), kMayBeStopped));
  if (hardware) return {};
  for (const abi::DriverKind& kind : abi::kDriverKinds) {
    if (kind.unpause.empty()) continue;
    STASIS_TRY(Annotate(RunProgram(pid, std::string(kind.unpause), deadline), kMayBeStopped));
  }
  return {};
}

}  // namespace stasis::device::hip
