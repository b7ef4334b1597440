// Tests the agent's first look-up of the driver against a constructor that runs in dlopen.
//
// One thread is inside dlopen, which holds the loader's lock. Another one makes the program's first
// driver call, for which the agent needs that lock. The constructor then forks and looks up a
// driver function, as does the child. Prints EXIT-SUCCESS at the end.
//
//   agent_loader_lock PLUGIN
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) {                                            \
      printf("line %d: check failed: %s\n", __LINE__, #condition); \
      exit(1);                                                     \
    }                                                              \
  } while (0)

int cuGetProcAddress(const char*, void**, int, unsigned long long);

static _Atomic int caller;  // the thread that makes the first call
static pthread_t first;

static int Sleeps(int thread) {
  char path[64], text[512] = {0};
  snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
  FILE* file = fopen(path, "r");
  EXPECT(file != NULL && fgets(text, sizeof(text), file) != NULL);
  fclose(file);
  return strrchr(text, ')')[2] == 'S';
}

static void* FirstCall(void* nothing) {
  atomic_store(&caller, (int)syscall(SYS_gettid));
  // Do not use a call that passes the gate: it takes the loader's lock before it looks up the
  // driver.
  void* found = NULL;
  EXPECT(cuGetProcAddress("cuMemAlloc", &found, 12000, 0) == 0 && found != NULL);
  return nothing;
}

static void LookUp(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  EXPECT(driver != NULL && dlsym(driver, "cuMemAlloc_v2") != NULL);
}

// Called by the plugin's constructor.
void InConstructor(void) {
  EXPECT(pthread_create(&first, NULL, FirstCall, NULL) == 0);
  while (atomic_load(&caller) == 0) usleep(1000);
  while (!Sleeps(atomic_load(&caller))) usleep(1000);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    LookUp();
    _exit(0);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(status == 0);
  LookUp();
}

int main(int argc, char** argv) {
  EXPECT(argc == 2);
  alarm(60);
  EXPECT(dlopen(argv[1], RTLD_NOW) != NULL);
  EXPECT(pthread_join(first, NULL) == 0);
  puts("EXIT-SUCCESS");
  return 0;
}
