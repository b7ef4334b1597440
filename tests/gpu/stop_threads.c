/* stop_threads PID KEEP_TID COMMAND…: runs COMMAND while all threads of PID except one are stopped,
 * and resumes them afterwards. If this program is killed, the kernel detaches it as tracer and
 * resumes them too. The exit code is COMMAND's; 99 if the threads could not be stopped. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t stopped[4096];
static int count;

static int known(pid_t tid) {
  for (int i = 0; i < count; ++i) {
    if (stopped[i] == tid) return 1;
  }
  return 0;
}

/* Returns the number of running threads that it found. */
static int stop_all(pid_t pid, pid_t keep) {
  char path[64];
  int found = 0;
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR* dir = opendir(path);
  if (dir == NULL) return -1;
  for (struct dirent* entry; (entry = readdir(dir)) != NULL;) {
    pid_t tid = atoi(entry->d_name);
    if (tid <= 0 || tid == keep || known(tid)) continue;
    if (ptrace(PTRACE_SEIZE, tid, 0, 0) != 0) {
      if (errno == ESRCH) continue;
      perror("seize");
      closedir(dir);
      return -1;
    }
    ptrace(PTRACE_INTERRUPT, tid, 0, 0);
    int status;
    if (waitpid(tid, &status, __WALL) != tid || !WIFSTOPPED(status)) continue;
    if (count == 4096) break;
    stopped[count++] = tid;
    ++found;
  }
  closedir(dir);
  return found;
}

int main(int argc, char** argv) {
  if (argc < 4) return 99;
  const pid_t pid = atoi(argv[1]), keep = atoi(argv[2]);
  /* The next scan finds threads that were just being created. */
  for (int found; (found = stop_all(pid, keep)) != 0;) {
    if (found < 0) return 99;
  }
  fprintf(stderr, "%d threads are stopped\n", count);
  const pid_t child = fork();
  if (child == 0) {
    execv(argv[3], argv + 3);
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) != child) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}
