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
// For who waits for something else meanwhile. Both ends stay open.
int cancel_pipe[2] = {-1, -1};

// Ctrl-C asks; the plan answers between two phases, by undoing what it did. A second one changes
// nothing: an operation that was half undone is what nobody wants.
void AskToCancel(int signal) {
  // Without us it goes on: a terminal that went away is no wish to undo an hour's dump.
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
    // `nohup` and a shell's `&` have said already that it shall not matter.
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

bool Interrupted() { return cancel_asked; }

void LeaveToDaemon() { by_daemon = true; }

int InterruptFd() { return cancel_pipe[0]; }

}  // namespace stasis::cli
