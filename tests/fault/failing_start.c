// Preloaded into a Stasis program. Starting a thread or process then fails as at a limit
// (EAGAIN):
//   FAILING_START=NAME:N      in programs of this name the Nth start fails
//   FAILING_START=NAME:N+     the Nth one and all later ones
//   FAILING_START_NOTE=FILE   gets a byte for each failed start
// Helpers are started with a cleaned environment, so these variables are added to it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kMostVariables = 4096 };  // in an environment

static const char* const kOurs[] = {"LD_PRELOAD=", "FAILING_START=", "FAILING_START_NOTE="};
enum { kOursCount = sizeof kOurs / sizeof kOurs[0] };

static char* ours[kOursCount];  // with their original values
static int first;               // 0: nothing fails here
static int last;
static const char* note_file;
static atomic_int count;

__attribute__((constructor)) static void read_environment(void) {
  for (char** entry = environ; *entry != NULL; ++entry) {
    for (int i = 0; i < kOursCount; ++i) {
      if (strncmp(*entry, kOurs[i], strlen(kOurs[i])) == 0) ours[i] = strdup(*entry);
    }
  }
  const char* rule = getenv("FAILING_START");
  const size_t name = strlen(program_invocation_short_name);
  if (rule == NULL || strncmp(rule, program_invocation_short_name, name) != 0 || rule[name] != ':')
    return;
  char* end;
  first = (int)strtol(rule + name + 1, &end, 10);
  last = *end == '+' ? 1 << 30 : first;
  note_file = ours[2] == NULL ? NULL : ours[2] + strlen(kOurs[2]);
}

static int fails(void) {
  if (first == 0) return 0;
  const int number = ++count;
  if (number < first || number > last) return 0;
  const int fd =
      note_file == NULL ? -1 : open(note_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd >= 0) {
    (void)!write(fd, ".", 1);
    close(fd);
  }
  return 1;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  if (fails()) return EAGAIN;
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) =
      dlsym(RTLD_NEXT, "pthread_create");
  return real(thread, attributes, start, argument);
}

pid_t fork(void) {
  if (fails()) {
    errno = EAGAIN;
    return -1;
  }
  pid_t (*real)(void) = dlsym(RTLD_NEXT, "fork");
  return real();
}

int execvpe(const char* file, char* const argv[], char* const environment[]) {
  int (*real)(const char*, char* const[], char* const[]) = dlsym(RTLD_NEXT, "execvpe");
  if (strstr(file, "/stasis-") == NULL && strstr(file, "/stasisd") == NULL)
    return real(file, argv, environment);
  static char* extended[kMostVariables];
  int size = 0;
  for (; environment[size] != NULL && size < kMostVariables - kOursCount - 1; ++size) {
    extended[size] = environment[size];
  }
  for (int i = 0; i < kOursCount; ++i) {
    int is_there = 0;
    for (int j = 0; j < size; ++j)
      is_there |= strncmp(extended[j], kOurs[i], strlen(kOurs[i])) == 0;
    if (!is_there && ours[i] != NULL) extended[size++] = ours[i];
  }
  extended[size] = NULL;
  return real(file, argv, extended);
}
