#include "base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "abi/driver_kinds.h"
#include "base/descriptor_table.h"
#include "base/operation_id.h"
#include "base/rights.h"
#include "base/task_limits.h"

namespace stasis {
namespace {

// Runs between fork and exec. The parent may have threads, so only async-signal-safe calls are
// allowed.
[[noreturn]] void ChildMain(const SpawnOptions& options, char* const* argv, char* const* env,
                            std::vector<std::pair<int, int>>& fds, int error_fd, pid_t parent) {
  auto fail = [&] {
    int error = errno;
    (void)!::write(error_fd, &error, sizeof error);
    ::_exit(127);
  };
  if (options.new_session) ::setsid();
  if (options.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
  }
  // Two passes, so that no source descriptor is overwritten before it is copied. The first one
  // moves all sources above the targets.
  int highest = error_fd;
  for (auto& [target, source] : fds) highest = std::max({highest, target, source});
  int base = highest + 1;
  for (auto& [target, source] : fds) {
    if (source < 0) continue;
    int copy = DuplicateAbove(source, base);
    if (copy < 0) fail();
    source = copy;
    base = copy + 1;
  }
  int moved_error_fd = DuplicateAbove(error_fd, base);
  if (moved_error_fd < 0) fail();
  error_fd = moved_error_fd;
  int next = 0;  // `fds` is sorted by target
  for (auto& [target, source] : fds) {
    if (DuplicateAs(source, target) < 0) fail();
    if (target > next)
      ::close_range(static_cast<unsigned>(next), static_cast<unsigned>(target - 1), 0);
    next = target + 1;
  }
  ::close_range(static_cast<unsigned>(next), ~0u, CLOSE_RANGE_CLOEXEC);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (int number : options.blocked_signals) sigaddset(&blocked, number);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  for (int number : options.ignored_signals) ::signal(number, SIG_IGN);
  if (options.rights != SpawnOptions::Rights::kNone) {
    PassRightsOn(
        {.trace = options.rights == SpawnOptions::Rights::kDump, .network = options.network_right});
  }
  if (!options.working_directory.empty() && ::chdir(options.working_directory.c_str()) != 0) fail();
  if (options.descriptor_limit) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) fail();
    limit.rlim_cur = std::min<rlim_t>(*options.descriptor_limit, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) fail();
  }
  ::execvpe(argv[0], argv, env);
  fail();
  __builtin_unreachable();
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const auto& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<Subprocess> Subprocess::Spawn(const SpawnOptions& options) {
  auto argv = Pointers(options.argv);
  std::vector<char*> env_pointers;
  if (options.env) env_pointers = Pointers(*options.env);
  char* const* env = options.env ? env_pointers.data() : environ;

  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return FailErrno(errno, "open /dev/null");
  std::map<int, int> wanted = options.fds;
  wanted.try_emplace(0, null.get());
  wanted.try_emplace(1, null.get());
  wanted.try_emplace(2, STDERR_FILENO);
  std::vector<std::pair<int, int>> fds(wanted.begin(), wanted.end());

  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  UniqueFd read_end(pipe_fds[0]);
  UniqueFd write_end(pipe_fds[1]);

  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0) return Fail(TaskError(errno, "fork"));
  if (pid == 0) ChildMain(options, argv.data(), env, fds, write_end.get(), parent);

  Subprocess child;
  child.pid_ = pid;
  child.pidfd_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const int pidfd_error = child.pidfd_ ? 0 : errno;
  write_end.Reset();
  int exec_error = 0;
  if (TEMP_FAILURE_RETRY(::read(read_end.get(), &exec_error, sizeof exec_error)) ==
      static_cast<ssize_t>(sizeof exec_error)) {
    ::waitpid(pid, nullptr, 0);
    return FailErrno(exec_error, "start " + options.argv[0]);
  }
  if (!child.pidfd_) {
    child.Kill(SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return FailErrno(pidfd_error, "pidfd_open");
  }
  return child;
}

Result<int> Subprocess::Wait(const Deadline& deadline) {
  if (status_) return *status_;
  pollfd p{pidfd_.get(), POLLIN, 0};
  int ready = TEMP_FAILURE_RETRY(::poll(&p, 1, deadline.PollTimeout()));
  if (ready < 0) return FailErrno(errno, "poll");
  if (ready == 0) {
    return Fail(Code::kDeadlineExceeded, "process " + std::to_string(pid_) + " is still running");
  }
  int status = 0;
  if (TEMP_FAILURE_RETRY(::waitpid(pid_, &status, 0)) < 0) return FailErrno(errno, "waitpid");
  status_ = status;
  return status;
}

void Subprocess::Kill(int signal) {
  if (!status_ && pid_ > 0) ::kill(pid_, signal);
}

std::string DescribeWaitStatus(int status) {
  if (WIFEXITED(status)) return "exited with code " + std::to_string(WEXITSTATUS(status));
  if (WIFSIGNALED(status)) {
    return "was killed by signal " + std::to_string(WTERMSIG(status)) + " (" +
           ::strsignal(WTERMSIG(status)) + ")";
  }
  return "has wait status " + std::to_string(status);
}

std::vector<std::string> ScrubbedEnvironment() {
  // LD_LIBRARY_PATH is kept: many clusters rely on it to find libcuda.so.1.
  static constexpr std::string_view kExact[] = {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"};
  static constexpr std::string_view kPrefixes[] = {"LC_", "LANG", "STASIS_"};
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    std::string_view name = text.substr(0, text.find('='));
    bool keep = std::find(std::begin(kExact), std::end(kExact), name) != std::end(kExact);
    for (auto prefix : kPrefixes) keep |= name.starts_with(prefix);
    keep |= abi::IsDriverVariable(text);
    if (keep && name != kOperationVariable) kept.emplace_back(text);
  }
  kept.push_back(std::string(kOperationVariable) + "=" + OperationId());
  return kept;
}

}  // namespace stasis
