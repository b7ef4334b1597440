#include "api/attach.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "api/attach_session.h"
#include "api/job_message.h"
#include "api/run_job.h"
#include "base/file.h"
#include "jobs/log_reader.h"
#include "jobs/manage.h"
#include "jobs/watch.h"
#include "shim/shim_protocol.h"

namespace stasis::api {
namespace {

// Signals that are not forwarded: faults, child and write events of this process, and job control,
// which must stop this process and not the job.
constexpr int kOwnSignals[] = {SIGSEGV, SIGBUS,  SIGFPE,  SIGILL,  SIGTRAP, SIGSYS,  SIGABRT,
                               SIGCHLD, SIGPIPE, SIGXFSZ, SIGXCPU, SIGTSTP, SIGTTIN, SIGTTOU};
// Bytes of the log to show first, so that the screen is not empty.
constexpr uint64_t kTailBytes = 16u << 10;

uint64_t LogSize(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) ? static_cast<uint64_t>(st.st_size)
                                                               : 0;
}

// Returns true if `fd` is a pipe or a file. The program can inherit these directly, and a dump can
// handle them.
bool CanBeInput(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode));
}

bool HasTerminal(const jobs::Store& store, const jobs::Job& job) {
  return job.has_shim && PathExists(store.Folder(job.id) + "/" + shim::kTerminalSocket);
}

Result<int> FollowLog(AttachSession session, const jobs::Job& start, uint64_t log_offset) {
  jobs::LogReader log(start.log, log_offset);
  STASIS_ASSIGN(jobs::Watch watch,
                jobs::Watch::Start(session.store, start.id, log.regular() ? start.log : ""));
  std::optional<process::ProcessId> root;
  bool detached = false;
  while (!detached) {
    STASIS_ASSIGN(jobs::Job job, watch.Look());
    // The log is read after the state, so that the output of a job that has ended is complete.
    STASIS_ASSIGN(bool read, log.Copy());
    if (!read) break;
    if (!job.processes) return ExitCodeOf(ToMessage(job, {}));
    if (!root) root = job.processes->root;
    if (auto end = session.EndOf(job, *root)) return *end;
    STASIS_TRY(watch.Wait(session.signals.fd(), {}));
    while (int signal = session.signals.Read()) {
      if (signal == SIGWINCH || signal == SIGCONT) continue;
      detached |= signal == SIGHUP || session.watch;
      if (!detached) PassOn(*root, signal);
    }
  }
  return session.Detached(start.id);
}

}  // namespace

Result<CaughtSignals> CaughtSignals::Catch() {
  sigset_t set;
  sigfillset(&set);
  for (int signal : kOwnSignals) sigdelset(&set, signal);
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

Result<AttachSession> AttachSession::Begin(const Call& call, const v1::AttachOptions& options,
                                           Note note) {
  STASIS_ASSIGN(DetachKeys keys,
                DetachKeys::Parse(options.detach_keys().empty() ? kDefaultDetachKeys
                                                                : options.detach_keys()));
  STASIS_ASSIGN(CaughtSignals signals, CaughtSignals::Catch());
  return AttachSession{jobs::Store(call.paths.jobs()), options.watch(), std::move(keys),
                       std::move(signals), std::move(note)};
}

std::optional<Result<int>> AttachSession::EndOf(const jobs::Job& job,
                                                const process::ProcessId& root) const {
  // The root differs if the job was dumped and restored in the meantime.
  if (!job.processes || job.processes->root != root) return shim::kDumpedExitCode;
  if (!jobs::HasEnded(job.state)) return std::nullopt;
  if (job.state == jobs::State::kDumped && job.dumped_image) {
    Tell(fmt::format("job {} was dumped to {}", job.id, *job.dumped_image));
  }
  return ExitCodeOf(ToMessage(job, {}));
}

void PassOn(const process::ProcessId& root, int signal) {
  auto pidfd = process::OpenPidfd(root);
  if (!pidfd) return;
  if (signal != SIGINT && signal != SIGQUIT) {
    ::syscall(SYS_pidfd_send_signal, pidfd->get(), signal, nullptr, 0);
    return;
  }
  // A terminal sends these signals to the process group, which the root leads. The open pidfd
  // proves that the pid is still that of the root.
  ::kill(-root.pid.value, signal);
}

Result<int> ExitCodeOf(const v1::Job& job) {
  if (job.state() == jobs::StateName(jobs::State::kDumped)) return shim::kDumpedExitCode;
  if (job.has_code()) return job.code();
  const bool adopted = job.has_root() && !job.has_shim_process();
  return Fail(Code::kUnavailable, "job " + job.id() + " has ended with an unknown exit code",
              adopted ? "Stasis did not start it; the process that started it has its exit code"
                      : "its shim was killed, or the machine was restarted");
}

Result<int> Follow(AttachSession session, const std::string& id, uint64_t log_offset) {
  STASIS_ASSIGN(jobs::Job job, session.store.Load(id));
  if (!HasTerminal(session.store, job) || !job.processes) {
    return FollowLog(std::move(session), job, log_offset);
  }
  return FollowTerminal(std::move(session), job);
}

Result<int> Attach(const Call& call, const std::string& id, const v1::AttachOptions& options,
                   const Note& note) {
  const jobs::Store store(call.paths.jobs());
  STASIS_ASSIGN(const jobs::Job job, store.Load(id));
  STASIS_TRY(jobs::CheckHasOutput(job, "attach to"));
  STASIS_TRY(jobs::CheckHere(job));
  if (job.state != jobs::State::kRunning) {
    return Fail(
        Code::kFailedPrecondition,
        fmt::format("cannot attach to job {}: it is {}", job.id, jobs::StateName(job.state)),
        fmt::format("`stasis logs {}` shows its output", job.id));
  }
  STASIS_ASSIGN(AttachSession session, AttachSession::Begin(call, options, note));
  return Follow(std::move(session), id, jobs::LogReader::TailOffset(job.log, kTailBytes));
}

Result<int> RunAttached(Call& call, const v1::RunRequest& request, const v1::AttachOptions& options,
                        const Note& note) {
  STASIS_ASSIGN(AttachSession session, AttachSession::Begin(call, options, note));
  std::optional<jobs::TerminalClient::Pair> terminal;
  uint64_t log_offset = 0;
  auto connect = [&](jobs::StdioSpec& stdio) -> Status {
    log_offset = LogSize(stdio.log);
    if (stdio.terminal) {
      STASIS_ASSIGN(terminal, jobs::TerminalClient::MakePair(*stdio.terminal));
      stdio.client_fd = terminal->shim_side.get();
    } else if (CanBeInput(STDIN_FILENO)) {
      stdio.input_fd = STDIN_FILENO;
    }
    return {};
  };
  STASIS_ASSIGN(const v1::RunResponse started, StartJob(call, request, connect));
  session.Tell(fmt::format("job {}, process {}", started.job(), started.pid()));
  if (!terminal) return Follow(std::move(session), started.job(), log_offset);
  terminal->shim_side.Reset();
  STASIS_ASSIGN(const jobs::Job job, session.store.Load(started.job()));
  return StayOnTerminal(std::move(session), job, std::move(terminal->client));
}

Result<int> RestoreAttached(const Call& call, const v1::RestoreRequest& request,
                            const std::function<Result<std::string>()>& restore,
                            const v1::AttachOptions& options, const Note& note) {
  STASIS_ASSIGN(AttachSession session, AttachSession::Begin(call, options, note));
  std::string log = request.log();
  if (log.empty()) {
    auto job = session.store.Load(request.job().empty() ? request.source() : request.job());
    if (job) log = job->log;
  }
  const uint64_t log_offset = LogSize(log);
  STASIS_ASSIGN(const std::string job, restore());
  if (job.empty()) return 0;
  return Follow(std::move(session), job, log_offset);
}

}  // namespace stasis::api
