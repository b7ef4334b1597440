#include "shim/records.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>

#include "base/clock.h"
#include "base/file.h"
#include "process/host_name.h"
#include "shim/shim_protocol.h"

namespace stasis::shim {
namespace {

constexpr size_t kReserveBytes = 4096;
constexpr size_t kMaxMarkerBytes = 16u << 10;

std::string Json(const process::ProcessId& id) {
  return "{\"pid\": " + std::to_string(id.pid.value) +
         ", \"start_time\": " + std::to_string(id.start_time) + "}";
}

}  // namespace

Result<JobFolder> JobFolder::Open(const std::string& path) {
  JobFolder folder;
  folder.path_ = AbsolutePath(path);
  STASIS_ASSIGN(folder.folder_, stasis::Open(folder.path_, O_RDONLY | O_DIRECTORY));
  STASIS_ASSIGN(folder.lock_, stasis::Open(folder.File(kShimLock), O_RDWR | O_CREAT));
  if (TEMP_FAILURE_RETRY(::flock(folder.lock_.get(), LOCK_EX)) != 0) {
    return FailErrno(errno, "lock " + folder.File(kShimLock));
  }
  return folder;
}

Status JobFolder::ReserveExit() {
  STASIS_ASSIGN(reserve_, stasis::Open(File(kExitReserve), O_RDWR | O_CREAT | O_TRUNC));
  // Reserves the space by writing, because not every file system supports fallocate.
  return Annotate(WriteAll(reserve_.get(), std::string(kReserveBytes, ' ')),
                  "reserve " + File(kExitFile));
}

Status JobFolder::RecordProcesses(const process::ProcessId& shim, const process::ProcessId& root,
                                  const FileId& log) {
  STASIS_ASSIGN(std::string boot_id, process::BootId());
  std::string text = "{\"version\": " + std::to_string(kRecordVersion) + ", \"boot_id\": \"" +
                     boot_id + "\", \"host\": \"" + process::HostName() +
                     "\", \"shim\": " + Json(shim) + ", \"root\": " + Json(root) +
                     ", \"log\": {\"device\": " + std::to_string(log.device) +
                     ", \"inode\": " + std::to_string(log.inode) + "}}\n";
  STASIS_TRY(WriteFileDurably(File(kProcessFile), text));
  // These files have been invalid since the rename, because they name other processes. They are
  // removed only for tidiness.
  ::unlink(File(kExitFile).c_str());
  ::unlink(File(kDumpedFile).c_str());
  return {};
}

bool JobFolder::IsMarkedDumped(const process::ProcessId& root) const {
  auto text = ReadFile(File(kDumpedFile), kMaxMarkerBytes);
  int version = 0;
  pid_t pid = 0;
  uint64_t start_time = 0;
  return text && std::sscanf(text->c_str(), "%d %d %" SCNu64, &version, &pid, &start_time) == 3 &&
         version == kRecordVersion && pid == root.pid.value && start_time == root.start_time;
}

Status JobFolder::RecordExit(const process::ProcessId& root, int wait_status) {
  int signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  int code = signal != 0 ? 128 + signal : WEXITSTATUS(wait_status);
  // The mark "dumped" only announces that CRIU will kill the program. If SIGKILL has ended the
  // root, CRIU has done so.
  bool dumped = signal == SIGKILL && IsMarkedDumped(root);
  if (dumped) code = kDumpedExitCode;
  std::string text = "{\"version\": " + std::to_string(kRecordVersion) +
                     ", \"root\": " + Json(root) + ", \"state\": \"" +
                     (dumped ? "dumped" : "exited") + "\", \"code\": " + std::to_string(code) +
                     ", \"signal\": " + std::to_string(signal) +
                     ", \"time_ms\": " + std::to_string(NowMs()) + "}\n";
  Status status;
  if (::pwrite(reserve_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      ::ftruncate(reserve_.get(), static_cast<off_t>(text.size())) != 0 ||
      ::fsync(reserve_.get()) != 0 ||
      ::renameat(folder_.get(), kExitReserve, folder_.get(), kExitFile) != 0 ||
      ::fsync(folder_.get()) != 0) {
    status = FailErrno(errno, "write " + File(kExitFile));
  }
  reserve_.Reset();
  lock_.Reset();
  return status;
}

void JobFolder::Forget() {
  if (!lock_) return;
  ::unlinkat(folder_.get(), kExitReserve, 0);
  reserve_.Reset();
  lock_.Reset();
}

}  // namespace stasis::shim
