#define _GNU_SOURCE
#include "threads.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "log.h"

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

/* Threads that CRIU has stopped, and that run again while Stasis needs them: the agents' and the
 * driver's. */
static struct {
  pid_t id;
  unsigned long mask;
}* running;
static size_t running_count;

/* The ptrace options of these threads while they run and when they are stopped again. */
static unsigned long options_running;
static unsigned long options_stopped = PTRACE_O_SUSPEND_SECCOMP | PTRACE_O_TRACESYSGOOD;

bool stasis_let_run(const struct stasis_criu_frame* frame) {
  const size_t count = frame->length / sizeof(int32_t);
  void* more = realloc(running, (running_count + count) * sizeof *running);
  if (more == NULL) return false;
  running = more;
  for (size_t i = 0; i < count; ++i) {
    int32_t id;
    memcpy(&id, frame->text + i * sizeof id, sizeof id);
    /* The thread must not handle signals of the program. ptrace needs SIGTRAP. */
    unsigned long blocked = ~(1ul << (SIGTRAP - 1));
    unsigned long before;
    if (ptrace(PTRACE_GETSIGMASK, id, sizeof before, &before) != 0 ||
        ptrace(PTRACE_SETSIGMASK, id, sizeof blocked, &blocked) != 0 ||
        ptrace(PTRACE_SETOPTIONS, id, NULL, options_running) != 0 ||
        ptrace(PTRACE_CONT, id, NULL, 0) != 0) {
      stasis_say(STASIS_LOG_ERROR, "thread %d does not run: %s", (int)id, strerror(errno));
      return false;
    }
    running[running_count].id = id;
    running[running_count++].mask = before;
  }
  return true;
}

/* Continues threads that have stopped for a signal. Only SIGSTOP, which cannot be blocked, is
 * dropped: SIGCONT, which may have come since, does not end this kind of stop. */
static void continue_stopped(void) {
  for (size_t i = 0; i < running_count; ++i) {
    int status;
    if (waitpid(running[i].id, &status, __WALL | WNOHANG) <= 0 || !WIFSTOPPED(status)) continue;
    const int signal = WSTOPSIG(status);
    (void)ptrace(PTRACE_CONT, running[i].id, NULL, signal == SIGSTOP ? 0 : signal);
  }
}

/* Waits until a frame can be received. Threads that run may stop meanwhile. */
static void await_frame(int socket) {
  sigset_t child, before;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, &before);
  const int stops = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  struct pollfd wait[] = {{.fd = socket, .events = POLLIN}, {.fd = stops, .events = POLLIN}};
  do {
    struct signalfd_siginfo info;
    while (stops >= 0 && read(stops, &info, sizeof info) > 0) {
    }
    continue_stopped();
  } while (poll(wait, 2, -1) >= 0 ? wait[0].revents == 0 : errno == EINTR);
  if (stops >= 0) close(stops);
  sigprocmask(SIG_SETMASK, &before, NULL);
}

int stasis_ask_running(int socket, enum stasis_criu_kind kind, int pid, int value,
                       struct stasis_criu_frame* answer) {
  const int got = stasis_ask(socket, kind, pid, value, -1, answer);
  if (got != STASIS_CRIU_THREAD_IDS) return got;
  bool runs = stasis_let_run(answer);
  while (answer->value != 0 && stasis_receive(socket, answer) == 0 &&
         answer->kind == STASIS_CRIU_THREAD_IDS) {
    runs = stasis_let_run(answer) && runs;
  }
  struct stasis_criu_frame request;
  stasis_frame_init(&request, STASIS_CRIU_RUNNING, pid, 0);
  if (runs && stasis_send(socket, &request, -1) == 0) {
    await_frame(socket);
    return stasis_answer(socket, answer);
  }
  stasis_frame_init(answer, STASIS_CRIU_REFUSED, pid, 0);
  (void)stasis_frame_text(answer, "a thread of the driver or of an agent does not run");
  return STASIS_CRIU_REFUSED;
}

enum { TRACED = 65536 };

/* The threads that CRIU traces at the end of a restore, except the root process itself. */
static struct {
  pid_t ids[TRACED];
  volatile size_t count;
  bool reaps;
  struct sigaction before; /* CRIU's action for SIGCHLD */
} traced;

enum { WAIT_MS = 5000 };

void stasis_kill_restored(pid_t root) {
  kill(root, SIGKILL);
  for (size_t i = 0; i < traced.count; ++i) kill(traced.ids[i], SIGKILL);
  for (int waited = 0; waited < WAIT_MS; ++waited) {
    int status;
    pid_t got;
    do {
      got = waitpid(-1, &status, __WALL | WNOHANG);
    } while (got > 0 && got != root);
    if (got < 0 || (got == root && !WIFSTOPPED(status))) return;
    poll(NULL, 0, 1);
  }
}

/* Waits until the thread stops or ends. Does not wait forever: if the first process of a pid
 * namespace is killed, one of its threads waits until CRIU has released all others. */
static bool await_stop(pid_t id) {
  for (int waited = 0; waited < WAIT_MS; ++waited) {
    int status;
    const pid_t got = waitpid(id, &status, __WALL | WNOHANG);
    if (got != 0) return got > 0;
    poll(NULL, 0, 1);
  }
  errno = ETIMEDOUT;
  return false;
}

static void on_child(int signal) {
  (void)signal;
  const int error = errno;
  for (size_t i = 0; i < traced.count; ++i) {
    siginfo_t info;
    /* Ignores stops of live threads, and CRIU's scripts. */
    waitid(P_PID, (id_t)traced.ids[i], &info, WEXITED | WNOHANG | __WALL);
  }
  errno = error;
}

static void add_threads(pid_t pid, bool is_root) {
  char path[320];
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR* threads = opendir(path);
  if (threads == NULL) return;
  for (struct dirent* thread; (thread = readdir(threads)) != NULL;) {
    const pid_t id = (pid_t)atoi(thread->d_name);
    if (id <= 0 || (is_root && id == pid)) continue;
    if (traced.count == TRACED) break;
    traced.ids[traced.count] = id;
    ++traced.count; /* the handler may run already */
  }
  closedir(threads);
}

/* Adds the threads of the child processes of one thread. */
static void add_children(pid_t thread) {
  char path[320];
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)thread, (int)thread);
  FILE* children = fopen(path, "re");
  if (children == NULL) return;
  for (int child; fscanf(children, "%d", &child) == 1;) add_threads(child, false);
  fclose(children);
}

bool stasis_die_with_criu(pid_t root) {
  options_running = PTRACE_O_EXITKILL;
  options_stopped = PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD;
  pid_t thread = root;
  add_threads(root, true);
  for (size_t i = 0;; thread = traced.ids[i++]) {
    /* Fails for zombies, which are not traced. */
    (void)ptrace(PTRACE_SETOPTIONS, thread, NULL, options_stopped);
    add_children(thread);
    if (i == traced.count) break;
  }
  return traced.count < TRACED;
}

void stasis_reap_threads(pid_t pid, bool is_root) {
  add_threads(pid, is_root);
  if (is_root) stasis_begin_reaping();
}

void stasis_begin_reaping(void) {
  struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  traced.reaps = sigaction(SIGCHLD, &action, &traced.before) == 0;
  if (traced.reaps) on_child(SIGCHLD); /* for threads that have ended before */
}

void stasis_end_reaping(void) {
  if (traced.reaps) sigaction(SIGCHLD, &traced.before, NULL);
  traced.reaps = false;
}

void stasis_stop_running(void) {
  for (size_t i = 0; i < running_count; ++i) {
    const pid_t id = running[i].id;
    if (ptrace(PTRACE_INTERRUPT, id, NULL, 0) != 0 || !await_stop(id) ||
        ptrace(PTRACE_SETOPTIONS, id, NULL, options_stopped) != 0 ||
        ptrace(PTRACE_SETSIGMASK, id, sizeof running[i].mask, &running[i].mask) != 0) {
      stasis_say(STASIS_LOG_ERROR, "thread %d cannot be stopped again: %s", (int)id,
                 strerror(errno));
    }
  }
  free(running);
  running = NULL;
  running_count = 0;
}
