#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "shim/shim.h"

// Started with its starter's environment, directory, limits and cgroup, its end of the control pair
// as kControlFd, and nothing else of the starter's.
int main(int argc, char** argv) {
  using namespace stasis;
  UniqueFd control(shim::kControlFd);
  ::fcntl(control.get(), F_SETFD, FD_CLOEXEC);
  auto fail = [&](int error) {
    shim::Message message{
        .kind = shim::Kind::kFailed, .step = shim::Step::kArguments, .value = error};
    (void)!::send(control.get(), &message, sizeof message, MSG_NOSIGNAL);
    return 2;
  };
  auto options = shim::ParseOptions({argv + 1, argv + argc});
  if (!options) return fail(EINVAL);
  for (auto [there, here] : options->criu_fds) ::fcntl(here, F_SETFD, FD_CLOEXEC);

  // Away from the starter, who may live long and has better to do than to reap us.
  pid_t pid = ::fork();
  if (pid < 0) return fail(errno);
  if (pid > 0) ::_exit(0);
  ::setsid();
  ::_exit(shim::Shim(std::move(*options), std::move(control)).Main());
}
