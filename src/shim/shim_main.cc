#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/rights.h"
#include "shim/pid_namespace.h"
#include "shim/shim.h"

// The shim inherits the starter's environment, directory, limits and cgroup. Its descriptors are
// its end of the control pair, as kControlFd, and those named by its arguments.
int main(int argc, char** argv) {
  using namespace stasis;
  HoldRights();
  UniqueFd control(shim::kControlFd);
  ::fcntl(control.get(), F_SETFD, FD_CLOEXEC);
  auto fail = [&](int64_t error, shim::Step step) {
    shim::Message message{
        .kind = shim::Kind::kFailed, .step = step, .value = static_cast<int32_t>(error)};
    (void)!::send(control.get(), &message, sizeof message, MSG_NOSIGNAL);
    return 2;
  };
  auto options = shim::ParseOptions({argv + 1, argv + argc});
  if (!options) return fail(EINVAL, shim::Step::kArguments);
  for (auto [there, here] : options->criu_fds) ::fcntl(here, F_SETFD, FD_CLOEXEC);
  for (int fd : {options->client, options->input, options->proc}) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }

  // Daemonizes, so that the starter, which may be long-lived, need not reap the shim.
  auto child = shim::ForkShim(options->new_pidns);
  if (!child) {
    return fail(child.error().raw,
                options->new_pidns ? shim::Step::kNamespace : shim::Step::kStart);
  }
  if (*child != 0) ::_exit(0);
  ::setsid();
  auto pid = shim::ReadOwnPid(options->proc);
  if (!pid) ::_exit(fail(pid.error().raw, shim::Step::kStart));
  if (options->proc >= 0) ::close(options->proc);
  ::_exit(shim::Shim(std::move(*options), std::move(control), *pid).Main());
}
