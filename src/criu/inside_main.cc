// stasis-criu-inside: becomes CRIU in another pid namespace; see inside_protocol.h.
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "criu/inside_protocol.h"
#include "ipc/packet.h"

namespace {

using stasis::criu::Handover;
using stasis::criu::HandoverStep;

// The range of numbers for descriptors that the restored program inherits.
constexpr int kFirstInheritedFd = 20;
constexpr int kLastInheritedFd = 255;

// Sends a hand-over with `fd`, or without one if it is -1.
void Say(int socket, const Handover& handover, int fd) {
  (void)!stasis::ipc::SendWithDescriptors(socket, &handover, sizeof handover, &fd, fd >= 0 ? 1 : 0,
                                          0);
}

[[noreturn]] void GiveUp(int socket, HandoverStep step) {
  Say(socket, {step, errno}, -1);
  _exit(1);
}

void ForkOff(int socket, bool wait) {
  pid_t child = fork();
  if (child < 0) GiveUp(socket, HandoverStep::kFork);
  if (child == 0) return;
  if (wait) (void)!waitpid(child, nullptr, 0);
  _exit(0);
}

// Returns in a process whose parent is the init process of the other namespace. The first fork
// makes a process in that namespace. The second fork makes an orphan, which the init process of the
// namespace adopts.
void Enter(int socket) {
  if (setns(stasis::criu::kNamespaceFd, CLONE_NEWPID | CLONE_NEWNS) != 0) {
    GiveUp(socket, HandoverStep::kEnter);
  }
  close(stasis::criu::kNamespaceFd);
  ForkOff(socket, true);
  ForkOff(socket, false);
  setsid();
}

// Reopens the file by its name in this mount namespace. The inherited descriptor belongs to a mount
// that does not exist in this namespace, and a later dump could not locate the file.
void ReopenHere(int fd) {
  struct stat there, here;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0 || path[0] != '/' || fstat(fd, &there) != 0) return;
  if (!S_ISREG(there.st_mode) && !S_ISCHR(there.st_mode)) return;
  path[length] = 0;
  const int flags = fcntl(fd, F_GETFL);
  const int kept = O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT;
  if (flags < 0 || (flags & O_PATH) != 0) return;
  const int opened = open(path, (flags & kept) | O_NOCTTY | O_CLOEXEC);
  if (opened < 0) return;
  if (fstat(opened, &here) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino) {
    dup2(opened, fd);
  }
  close(opened);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace stasis::criu;
  const bool enter = argc > 1 && strcmp(argv[1], "--enter") == 0;
  const bool reopen = argc > 1 && strcmp(argv[1], "--reopen") == 0;
  char** criu = argv + (enter || reopen ? 2 : 1);
  const int socket = fcntl(kHandoverFd, F_DUPFD_CLOEXEC, kLastInheritedFd + 1);
  if (socket < 0 || criu[0] == nullptr) return 2;
  if (enter) Enter(socket);
  if (reopen) {
    for (int fd = kFirstInheritedFd; fd <= kLastInheritedFd; ++fd) ReopenHere(fd);
  }
  int pair[2];  // must be numbers above kHandoverFd, which later becomes CRIU's end
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0 ||
      dup2(pair[1], kHandoverFd) < 0) {
    GiveUp(socket, HandoverStep::kSocket);
  }
  Say(socket, {}, pair[0]);
  execv(criu[0], criu);
  GiveUp(socket, HandoverStep::kExec);
}
