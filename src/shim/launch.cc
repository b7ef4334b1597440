#include "shim/launch.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

#include "base/descriptor_table.h"
#include "base/rights.h"
#include "base/task_limits.h"

namespace stasis::shim {
namespace {

[[noreturn]] void ChildMain(const LaunchSpec& spec, char* const* argv, UniqueFd gate,
                            UniqueFd errors) {
  auto fail = [&] {
    int error = errno;
    (void)!::write(errors.get(), &error, sizeof error);
    ::_exit(127);
  };
  char permission;
  if (TEMP_FAILURE_RETRY(::read(gate.get(), &permission, 1)) != 1) ::_exit(127);

  ::setsid();
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  // Moves all source descriptors above the target numbers first, so that none is overwritten before
  // it is copied.
  int base = spec.fds.empty() ? 0 : spec.fds.rbegin()->first + 1;
  std::map<int, int> high;
  for (auto [target, source] : spec.fds) {
    int copy = DuplicateAbove(source, base);
    if (copy < 0) fail();
    high[target] = copy;
  }
  int high_errors = DuplicateAbove(errors.get(), base);
  if (high_errors < 0) fail();
  errors.release();
  errors.Reset(high_errors);
  ::close_range(0, ~0u, CLOSE_RANGE_CLOEXEC);
  for (auto [target, source] : high) {
    if (DuplicateAs(source, target) < 0) fail();
  }
  if (spec.controlling_terminal && ::ioctl(STDIN_FILENO, TIOCSCTTY, 0) != 0) fail();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const auto& [name, value] : spec.env) {
    if ((value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1)) != 0)
      fail();
  }
  // The shim has CAP_NET_ADMIN only for a restore that keeps TCP connections.
  if (spec.rights) PassRightsOn({.trace = false, .network = true});
  ::execvp(argv[0], argv);
  fail();
  __builtin_unreachable();
}

}  // namespace

Result<Launched> Launch(const LaunchSpec& spec) {
  std::vector<char*> argv;
  argv.reserve(spec.argv.size() + 1);
  for (const std::string& arg : spec.argv) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);

  int gate[2], errors[2];
  if (::pipe2(gate, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  UniqueFd gate_read(gate[0]);
  Launched launched;
  launched.gate_.Reset(gate[1]);
  if (::pipe2(errors, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
  launched.errors_.Reset(errors[0]);
  UniqueFd errors_write(errors[1]);

  launched.pid_ = ::fork();
  if (launched.pid_ < 0) return Fail(TaskError(errno, "fork"));
  if (launched.pid_ == 0) {
    // Close the child's copy of the write end. Otherwise the child would wait forever if this
    // process died before Release().
    launched.gate_.Reset();
    ChildMain(spec, argv.data(), std::move(gate_read), std::move(errors_write));
  }
  return launched;
}

int Launched::Release() {
  if (TEMP_FAILURE_RETRY(::write(gate_.get(), "g", 1)) != 1) return errno;
  gate_.Reset();
  int error = 0;
  ssize_t n = TEMP_FAILURE_RETRY(::read(errors_.get(), &error, sizeof error));
  errors_.Reset();
  return n == static_cast<ssize_t>(sizeof error) ? error : 0;
}

}  // namespace stasis::shim
