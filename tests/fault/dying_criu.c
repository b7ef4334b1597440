// Preloaded into CRIU, which is killed at a defined point, as if by `kill -9`:
//   DYING_CRIU_AFTER=N     when it has killed N processes of the program, instead of the next
//                          kill or after the last; counted while the file DYING_CRIU_WHEN exists
//   DYING_CRIU_SAYS=TEXT   when it, or a process that it creates, has written TEXT to its log
//   DYING_CRIU_INJECTS=PID when it has just started injected code in that task
//   DYING_CRIU_TOGETHER=1  Stasis is killed too
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int kSocketFd = 3;  // the socket to Stasis, created by Stasis

static int left = -1;
static pid_t criu;
static pid_t stasis;

__attribute__((constructor)) static void know(void) {
  struct ucred maker;
  socklen_t size = sizeof maker;
  criu = getpid();
  if (getenv("DYING_CRIU_TOGETHER") != NULL &&
      getsockopt(kSocketFd, SOL_SOCKET, SO_PEERCRED, &maker, &size) == 0) {
    stasis = maker.pid;
  }
}

// CRIU also kills processes that it uses to probe the kernel.
static int counts(void) {
  const char* when = getenv("DYING_CRIU_WHEN");
  return when != NULL && access(when, F_OK) == 0;
}

static void die(void) {
  if (stasis > 0) syscall(SYS_kill, stasis, SIGKILL);
  syscall(SYS_kill, criu, SIGKILL);
}

int kill(pid_t pid, int number) {
  if (number == SIGKILL && counts()) {
    if (left < 0) left = atoi(getenv("DYING_CRIU_AFTER"));
    if (left-- == 0) die();
  }
  return (int)syscall(SYS_kill, pid, number);
}

// After the last kill CRIU writes to its log and answers.
ssize_t write(int fd, const void* bytes, size_t size) {
  const char* text = getenv("DYING_CRIU_SAYS");
  if (left == 0) die();
  const ssize_t written = syscall(SYS_write, fd, bytes, size);
  if (text != NULL && memmem(bytes, size, text, strlen(text)) != NULL) die();
  return written;
}

long ptrace(int request, pid_t pid, void* address, void* data) {
  enum { kPeekUser = 3, kSetRegisters = 0x4205 };
  long word = 0;
  const int peeks = request >= 1 && request <= kPeekUser;
  const long result = syscall(SYS_ptrace, request, pid, address, peeks ? &word : data);
  const char* doomed = getenv("DYING_CRIU_INJECTS");
  if (request == kSetRegisters && doomed != NULL && pid == atoi(doomed)) die();
  return peeks && result >= 0 ? word : result;
}
