// Preloaded into CRIU: at the end of a dump, when the file DYING_CRIU_WHEN is there and it has
// ended DYING_CRIU_AFTER processes of the program, it is killed in the place of the next one, or
// after the last. So somebody's `kill -9` meets it behind our commit, at a place and not by luck.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int left = -1;

// It also ends what it has tried the kernel with.
static int counts(void) { return access(getenv("DYING_CRIU_WHEN"), F_OK) == 0; }

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); }

int kill(pid_t pid, int number) {
  if (number == SIGKILL && counts()) {
    if (left < 0) left = atoi(getenv("DYING_CRIU_AFTER"));
    if (left-- == 0) die();
  }
  return (int)syscall(SYS_kill, pid, number);
}

// After the last it writes to its log, and answers.
ssize_t write(int fd, const void* bytes, size_t size) {
  if (left == 0) die();
  return syscall(SYS_write, fd, bytes, size);
}
