#include "cli/interrupts.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace stasis::cli {
namespace {

std::atomic<bool> cancel_asked{false};
std::atomic<bool> by_daemon{false};
// A pipe that wakes code that waits in poll. Both ends stay open.
int cancel_pipe[2] = {-1, -1};

// Ctrl-C requests a cancellation; the plan checks for it between two phases and rolls back. Further
// signals have no effect, because a roll-back must not be interrupted.
void AskToCancel(int signal) {
  // The daemon runs the operation, and the loss of this command's terminal must not cancel it:
  // SIGHUP and SIGTERM end only this command.
  if (by_daemon && (signal == SIGHUP || signal == SIGTERM)) ::_exit(128 + signal);
  const int before = errno;
  cancel_asked = true;
  if (cancel_pipe[1] >= 0) (void)!::write(cancel_pipe[1], "c", 1);
  errno = before;
}

}  // namespace

void CatchInterrupts() {
  if (cancel_pipe[0] < 0 && ::pipe2(cancel_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    cancel_pipe[0] = cancel_pipe[1] = -1;
  }
  struct sigaction action = {};
  action.sa_handler = AskToCancel;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before = {};
    ::sigaction(signal, nullptr, &before);
    // A signal that `nohup` or a shell's `&` has set to be ignored stays ignored.
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

bool Interrupted() { return cancel_asked; }

void LeaveToDaemon() { by_daemon = true; }
void TakeBackFromDaemon() { by_daemon = false; }

int InterruptFd() { return cancel_pipe[0]; }

}  // namespace stasis::cli
