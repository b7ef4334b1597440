#include "cli/attach.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/file.h"
#include "jobs/watch.h"
#include "shim/shim_protocol.h"

namespace stasis::cli {
namespace {

// What a log holds, from an offset on, as it grows.
class LogReader {
 public:
  LogReader(const std::string& path, uint64_t offset) : offset_(offset) {
    if (auto fd = Open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY)) fd_ = std::move(*fd);
    struct stat st {};
    regular_ = fd_ && ::fstat(fd_.get(), &st) == 0 && S_ISREG(st.st_mode);
  }
  bool regular() const { return regular_; }

  // Copies what is new to stdout. False: nobody reads that any more.
  Result<bool> Copy() {
    if (!regular_) return true;  // sent to a device: there is nothing to read back
    struct stat st {};
    // Somebody has emptied it.
    if (::fstat(fd_.get(), &st) == 0 && static_cast<uint64_t>(st.st_size) < offset_) offset_ = 0;
    char buffer[64 << 10];
    for (;;) {
      ssize_t n = TEMP_FAILURE_RETRY(
          ::pread(fd_.get(), buffer, sizeof buffer, static_cast<off_t>(offset_)));
      if (n < 0) return FailErrno(errno, "read the log");
      if (n == 0) return true;
      offset_ += static_cast<uint64_t>(n);
      if (!WriteAll(STDOUT_FILENO, {buffer, static_cast<size_t>(n)})) return false;
    }
  }

 private:
  UniqueFd fd_;
  uint64_t offset_;
  bool regular_ = false;
};

void PassOn(const process::ProcessId& root, int signal) {
  auto pidfd = process::OpenPidfd(root);
  if (!pidfd) return;
  if (signal == SIGTERM) {
    ::syscall(SYS_pidfd_send_signal, pidfd->get(), signal, nullptr, 0);
    return;
  }
  // The root leads its group; the pidfd says that the number is still its own.
  ::kill(-root.pid.value, signal);
}

std::string LogToWatch(const jobs::Job& job) {
  return LogReader(job.log, 0).regular() ? job.log : std::string();
}

}  // namespace

Result<CaughtSignals> CaughtSignals::Catch() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP}) sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  CaughtSignals caught;
  caught.fd_.Reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!caught.fd_) return FailErrno(errno, "signalfd");
  return caught;
}

int CaughtSignals::Read() {
  signalfd_siginfo info;
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

Outcome ExitCodeOf(const jobs::Job& job) {
  if (job.state == jobs::State::kDumped) return shim::kDumpedExitCode;
  if (job.ending) return job.ending->code;
  return Fail(Code::kUnavailable, "job " + job.id + " has ended, and nobody knows how",
              "its shim was killed, or the machine was restarted");
}

Outcome Attach(const Globals& globals, const jobs::Store& store, const std::string& id,
               uint64_t log_offset, CaughtSignals signals) {
  STASIS_ASSIGN(jobs::Job job, store.Load(id));
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(store, id, LogToWatch(job)));
  LogReader log(job.log, log_offset);
  std::optional<process::ProcessId> root;
  bool detached = false;
  while (!detached) {
    STASIS_ASSIGN(job, watch.Look());
    // Read after the look: what an ended job has written is all there.
    STASIS_ASSIGN(bool read, log.Copy());
    if (!read) break;
    if (!job.processes) return ExitCodeOf(job);
    if (!root) root = job.processes->root;
    // Dumped and restored before we looked.
    if (job.processes->root != *root) return shim::kDumpedExitCode;
    if (jobs::HasEnded(job.state)) {
      if (job.state == jobs::State::kDumped && job.dumped_image && !globals.quiet) {
        PrintStderr(fmt::format("stasis: job {} was dumped to {}\n", id, *job.dumped_image));
      }
      return ExitCodeOf(job);
    }
    STASIS_TRY(watch.Wait(signals.fd(), {}));
    while (int signal = signals.Read()) {
      detached |= signal == SIGHUP;
      if (signal != SIGHUP) PassOn(*root, signal);
    }
  }
  if (!globals.quiet) PrintStderr(fmt::format("stasis: detached; job {} goes on\n", id));
  return 0;
}

Status CopyLog(const jobs::Store& store, const jobs::Job& job, uint64_t offset, bool follow) {
  LogReader log(job.log, offset);
  if (!follow) {
    STASIS_TRY(log.Copy());
    return {};
  }
  STASIS_ASSIGN(jobs::Watch watch, jobs::Watch::Start(store, job.id, LogToWatch(job)));
  for (;;) {
    STASIS_ASSIGN(jobs::Job now, watch.Look());
    STASIS_ASSIGN(bool read, log.Copy());
    // What the job has left in the background may go on to write.
    if (!read || (jobs::HasEnded(now.state) && BackgroundProcesses(now).empty())) return {};
    STASIS_TRY(watch.Wait(-1, {}));
  }
}

}  // namespace stasis::cli
