#include "shim/shim.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/file.h"
#include "base/rights.h"
#include "shim/descendants.h"
#include "shim/launch.h"
#include "shim/pid_namespace.h"

namespace stasis::shim {
namespace {

// The shim ignores signals that are meant for the job, because without the shim the job would lose
// its parent. It ignores SIGXFSZ too, which arrives when a record exceeds the limit on file size.
constexpr int kIgnored[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM, SIGPIPE, SIGALRM, SIGUSR1,
                            SIGUSR2, SIGTSTP, SIGTTIN, SIGTTOU, SIGXFSZ, SIGIO};

template <class Number>
bool ParseNumber(std::string_view text, Number* number) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= 0;
}

// Parses "24x80".
bool ParseSize(std::string_view text, WindowSize* size) {
  size_t x = text.find('x');
  return x != text.npos && ParseNumber(text.substr(0, x), &size->rows) &&
         ParseNumber(text.substr(x + 1), &size->columns);
}

int ErrnoOf(const Error& error) {
  return error.domain == Domain::kErrno ? static_cast<int>(error.raw) : EIO;
}

}  // namespace

Result<ShimOptions> ParseOptions(const std::vector<std::string>& args) {
  ShimOptions options;
  const tl::unexpected<Error> bad =
      Fail(Code::kInvalidArgument, Domain::kErrno, EINVAL, "the shim's arguments are not valid");
  if (args.empty() || (args[0] != "run" && args[0] != "restore")) return bad;
  if (args[0] == "restore") options.mode = ShimOptions::Mode::kRestore;
  size_t i = 1;
  for (; i + 1 < args.size() && args[i] != "--"; i += 2) {
    const std::string& value = args[i + 1];
    if (args[i] == "--job-dir") {
      options.job_dir = value;
    } else if (args[i] == "--log") {
      options.log = value;
    } else if (args[i] == "--fd") {
      size_t equals = value.find('=');
      int there, here;
      if (equals == std::string::npos || !ParseNumber(value.substr(0, equals), &there) ||
          !ParseNumber(value.substr(equals + 1), &here)) {
        return bad;
      }
      options.criu_fds[there] = here;
    } else if (args[i] == "--new-pidns" && options.mode == ShimOptions::Mode::kRestore) {
      options.new_pidns = true;
      if (!ParseNumber(value, &options.first_pid)) return bad;
    } else if (args[i] == "--proc" && options.mode == ShimOptions::Mode::kRestore) {
      if (!ParseNumber(value, &options.proc)) return bad;
    } else if (args[i] == "--terminal") {
      if (!ParseSize(value, &options.terminal.emplace())) return bad;
    } else if (args[i] == "--client") {
      if (!ParseNumber(value, &options.client)) return bad;
    } else if (args[i] == "--input" && options.mode == ShimOptions::Mode::kRun) {
      if (!ParseNumber(value, &options.input)) return bad;
    } else if (args[i] == "--keep-log") {
      if (!ParseNumber(value, &options.keep_log)) return bad;
    } else if (args[i] == "--env") {
      size_t equals = value.find('=');
      if (equals == std::string::npos || equals == 0) return bad;
      options.env[value.substr(0, equals)] = value.substr(equals + 1);
    } else {
      return bad;
    }
  }
  if (i + 1 >= args.size()) return bad;  // no program
  options.argv.assign(args.begin() + static_cast<long>(i) + 1, args.end());
  if (options.job_dir.empty() || options.log.empty()) return bad;
  return options;
}

int Shim::Main() {
  Step step = Step::kStart;
  Status started = Start(&step);
  if (!started) {
    // The program is not running: its exec has failed, or it was never started. Only helpers may be
    // left.
    KillDescendants(criu_);
    terminal_.StopListening();
    log_.RemoveIfCreated();
    folder_.Forget();
    Send({.kind = Kind::kFailed, .step = step, .value = ErrnoOf(started.error())});
    return 1;
  }
  return Loop();
}

Status Shim::Start(Step* step) {
  for (int signal : kIgnored) ::signal(signal, SIG_IGN);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_SETMASK, &child, nullptr);
  signals_.Reset(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return FailErrno(errno, "signalfd");
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return FailErrno(errno, "become a subreaper");
  if (options_.new_pidns) {
    *step = Step::kNamespace;
    STASIS_TRY(FurnishPidNamespace(options_.first_pid));
    *step = Step::kStart;
  }
  STASIS_ASSIGN(auto stat, process::ReadStat({::getpid()}));
  self_.start_time = stat.id.start_time;
  Send({.kind = Kind::kShim, .pid = self_.pid.value, .start_time = self_.start_time});

  *step = Step::kLog;
  const bool own = options_.log == options_.job_dir + kOwnLog;
  STASIS_ASSIGN(log_, own ? OutputLog::OpenJobs(options_.log) : OutputLog::Open(options_.log));
  *step = Step::kJobFolder;
  STASIS_ASSIGN(folder_, JobFolder::Open(options_.job_dir));

  if (options_.terminal) {
    *step = Step::kTerminal;
    STASIS_TRY(OpenTerminal());
  }

  *step = Step::kStart;
  STASIS_ASSIGN(UniqueFd null, stasis::Open("/dev/null", O_RDWR));
  STASIS_TRY(options_.mode == ShimOptions::Mode::kRun ? StartProgram(null.get(), step)
                                                      : StartCriu(null.get(), step));
  if (!terminal_) log_.Close();
  if (options_.keep_log != 0) bound_ = LogBound(options_.log, log_.id(), options_.keep_log);
  // The shim must not keep the program's working directory in use.
  (void)!::chdir("/");
  return {};
}

Status Shim::OpenTerminal() {
  STASIS_ASSIGN(terminal_, Terminal::Open(options_.job_dir, *options_.terminal, log_.fd()));
  if (options_.client >= 0) terminal_.Attach(UniqueFd(options_.client));
  // New clients first see the end of the output from before the dump.
  if (options_.mode == ShimOptions::Mode::kRestore) terminal_.Remember(log_.LastBytes());
  return {};
}

Status Shim::StartProgram(int null_fd, Step* step) {
  LaunchSpec spec{options_.argv, {{0, null_fd}, {1, log_.fd()}, {2, log_.fd()}}, options_.env};
  UniqueFd input(options_.input);
  if (input) spec.fds[0] = input.get();
  if (terminal_) {
    for (int fd : {0, 1, 2}) spec.fds[fd] = terminal_.program_side();
    spec.controlling_terminal = true;
  }
  STASIS_ASSIGN(Launched child, Launch(spec));
  STASIS_ASSIGN(auto stat, process::ReadStat({child.pid()}));
  // Record the processes before the program's first instruction, so that it never runs unrecorded.
  *step = Step::kRecord;
  STASIS_TRY(folder_.ReserveExit());
  STASIS_TRY(folder_.RecordProcesses(self_, stat.id, log_.id()));
  *step = Step::kExec;
  if (int error = child.Release(); error != 0) return FailErrno(error, "exec");
  root_ = stat.id;
  root_here_ = child.pid();
  committed_ = true;
  Send({.kind = Kind::kRoot, .pid = root_.pid.value, .start_time = root_.start_time});
  control_.Reset();
  return {};
}

Status Shim::StartCriu(int null_fd, Step* step) {
  LaunchSpec spec{options_.argv, options_.criu_fds, options_.env};
  spec.rights = true;
  for (int fd : {0, 1, 2}) spec.fds[fd] = null_fd;
  for (int fd : kCriuNullFds) spec.fds[fd] = null_fd;
  for (int fd : kCriuOutputFds) spec.fds[fd] = log_.fd();
  if (terminal_) {
    for (int fd : kCriuTerminalFds) spec.fds[fd] = terminal_.program_side();
  }
  STASIS_ASSIGN(Launched child, Launch(spec));
  criu_ = child.pid();
  *step = Step::kExec;
  if (int error = child.Release(); error != 0) return FailErrno(error, "exec");
  DropRights();  // the child has them now
  // Closes the shim's copies of CRIU's descriptors; otherwise their other ends would get no
  // end-of-file while the shim runs.
  for (auto [there, here] : options_.criu_fds) ::close(here);
  options_.criu_fds.clear();
  Send({.kind = Kind::kCriu, .pid = criu_});
  return {};
}

int Shim::Loop() {
  bool served = true;
  std::vector<pollfd> waits;
  while (served && !(childless_ && recorded_)) {
    waits = {{signals_.get(), POLLIN, 0}, {control_.get(), POLLIN, 0}};
    terminal_.AddTo(&waits);
    if (::poll(waits.data(), waits.size(), bound_.PollTimeout()) < 0 && errno != EINTR) return 1;
    terminal_.Serve();
    bound_.Serve();
    if (waits[0].revents != 0) {
      signalfd_siginfo ignored;
      while (::read(signals_.get(), &ignored, sizeof ignored) > 0) {
      }
      ReapChildren();
    }
    if (waits[1].revents != 0 && control_) served = ServeControl();
  }
  return 0;
}

void Shim::ReapChildren() {
  int status = 0;
  pid_t pid;
  while ((pid = ::waitpid(-1, &status, WNOHANG | __WALL)) > 0) OnChildEnd(pid, status);
  childless_ = pid < 0 && errno == ECHILD;
  // A shared server stays while other jobs need it; the next subreaper above adopts it. An init
  // process would kill it with the namespace.
  if (pid == 0 && recorded_ && !options_.new_pidns) childless_ = OnlySharedServersLeft();
}

void Shim::OnChildEnd(pid_t pid, int wait_status) {
  if (pid == criu_) {
    criu_ = 0;
    Send({.kind = Kind::kCriuEnded, .value = wait_status, .pid = pid});
  } else if (pid == root_here_ && !root_status_) {
    root_status_ = wait_status;
    OnRootEnd(wait_status);
  } else if (root_here_ == 0) {
    ended_[pid] = wait_status;
  }
}

void Shim::OnRootEnd(int wait_status) {
  if (!committed_) {
    Send({.kind = Kind::kRootEnded, .value = wait_status, .pid = root_.pid.value});
    return;
  }
  WriteDownEnd(wait_status);
}

// Sends all output before clients see the end, and removes the socket before the exit is recorded,
// because a restore that follows at once creates its own socket.
void Shim::WriteDownEnd(int wait_status) {
  terminal_.Drain();
  terminal_.StopListening();
  (void)folder_.RecordExit(root_, wait_status);
  recorded_ = true;
  terminal_.EndClients();
}

bool Shim::ServeControl() {
  Message message;
  const ssize_t size = ReceivePacket(control_.get(), &message, sizeof message);
  if (size < 0 && errno == EAGAIN) return true;
  if (size != sizeof message || message.version != kProtocolVersion) {
    Abort();
    return false;
  }
  switch (message.kind) {
    case Kind::kRoot:
      root_ = {{message.pid}, message.start_time};
      root_here_ = message.inner_pid;
      Send({.kind = Kind::kAck, .value = static_cast<int32_t>(Kind::kRoot)});
      if (auto it = ended_.find(root_here_); it != ended_.end()) {
        root_status_ = it->second;
        OnRootEnd(it->second);
      }
      ended_.clear();
      return true;
    case Kind::kCommit:
      Commit();
      return true;
    default:
      Abort();
      Send({.kind = Kind::kAck, .value = static_cast<int32_t>(Kind::kAbort)});
      return false;
  }
}

void Shim::Commit() {
  Step step = Step::kNoRoot;
  Status status;
  if (root_.pid.value == 0) {
    status = FailErrno(EINVAL, "commit");
  } else {
    step = Step::kRecord;
    status = folder_.ReserveExit();
    if (status) status = folder_.RecordProcesses(self_, root_, log_.id());
  }
  if (!status) {
    Send({.kind = Kind::kFailed, .step = step, .value = ErrnoOf(status.error())});
    return;
  }
  committed_ = true;
  Send({.kind = Kind::kAck, .value = static_cast<int32_t>(Kind::kCommit)});
  control_.Reset();
  if (root_status_) OnRootEnd(*root_status_);
}

void Shim::Abort() {
  KillDescendants(criu_);
  criu_ = 0;
  terminal_.StopListening();
  log_.RemoveIfCreated();
  folder_.Forget();
}

void Shim::Send(const Message& message) {
  if (control_) (void)!::send(control_.get(), &message, sizeof message, MSG_NOSIGNAL);
}

}  // namespace stasis::shim
