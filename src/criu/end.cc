#include "criu/end.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/deadline.h"
#include "process/tree.h"

namespace stasis::criu {
namespace {

void Signal(int pidfd, int number) { ::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0); }

bool Wait(int pidfd, std::chrono::milliseconds span) {
  pollfd ended{pidfd, POLLIN, 0};
  return TEMP_FAILURE_RETRY(::poll(&ended, 1, Deadline::In(span).PollTimeout())) > 0;
}

Ended Kill(int pidfd, const Patience& patience) {
  Signal(pidfd, SIGKILL);
  return Wait(pidfd, patience.killed) ? Ended::kKilled : Ended::kNotYet;
}

// Kills all descendants of CRIU but not CRIU itself. CRIU must be stopped, so that it neither reaps
// nor starts processes in the meantime.
void KillBelow(process::HostPid criu) {
  constexpr int kRounds = 100;  // tasks in creation may fork while they are being killed
  for (int round = 0; round < kRounds; ++round) {
    auto tree = process::ReadTree(criu);
    if (!tree) {
      if (tree.error().code == Code::kNotFound) return;
      continue;
    }
    bool found = false;
    for (const process::Stat& member : tree->members) {
      if (member.id.pid == criu || member.state == 'Z' || member.state == 'X') continue;
      ::kill(member.id.pid.value, SIGKILL);
      found = true;
    }
    if (!found) return;
  }
}

}  // namespace

// SIGKILL, and any other signal that CRIU does not catch, is the last resort: it stops tasks in the
// middle of code that CRIU injected, and sometimes one of them dies. Therefore this function first
// makes CRIU fail, so that it rolls back as after any other error. With RLIMIT_FSIZE set to 0 every
// write of an image fails (EFBIG). SIGALRM makes a blocking system call fail too. CRIU repeats the
// alarm every second and aborts after six alarms.
Ended EndDump(process::HostPid criu, int pidfd, const Patience& patience) {
  rlimit none{0, RLIM_INFINITY};
  // The pid is valid while the pidfd shows that CRIU is alive, because no other process reaps CRIU.
  if (!Wait(pidfd, std::chrono::milliseconds(0))) {
    ::prlimit(criu.value, RLIMIT_FSIZE, &none, nullptr);
  }
  Signal(pidfd, SIGCONT);
  if (Wait(pidfd, patience.undo)) return Ended::kByItself;
  Signal(pidfd, SIGALRM);
  if (Wait(pidfd, patience.alarm)) return Ended::kByItself;
  return Kill(pidfd, patience);
}

Ended EndRestore(process::HostPid criu, int pidfd, process::HostPid root,
                 const Patience& patience) {
  if (!Wait(pidfd, std::chrono::milliseconds(0))) {
    Signal(pidfd, SIGSTOP);
    KillBelow(criu);
    if (root.value > 0) ::kill(root.value, SIGKILL);
    Signal(pidfd, SIGCONT);
  }
  if (Wait(pidfd, patience.forget)) return Ended::kByItself;
  // Late in a restore, CRIU waits for its tasks even if they no longer exist, so it must be killed.
  Signal(pidfd, SIGSTOP);
  KillBelow(criu);
  return Kill(pidfd, patience);
}

}  // namespace stasis::criu
