// Forks while another thread changes the agent's table of memory, which the fork handler in the
// child reads. Prints EXIT-SUCCESS at the end.
//
// The program has its own realloc, which the agent uses like any library. In the thread that
// allocates GPU memory, it overwrites the old array and returns only when the main thread has
// forked or is about to.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <malloc.h>
#include <algorithm>
#include <atomic>
#include <thread>

#include "abi/cuda/driver_functions.h"

using namespace stasis::cuda;  // NOLINT

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) {                                            \
      printf("line %d: check failed: %s\n", __LINE__, #condition); \
      exit(1);                                                     \
    }                                                              \
  } while (0)

namespace {

constexpr size_t kRoom = 8;  // initial capacity of the agent's table
constexpr size_t kPiece = 16 << 20;

enum Step { kBegin, kInRealloc, kForking, kForked };
std::atomic<int> step{kBegin};
thread_local bool changes_the_table = false;

bool WaitsForALock(pid_t thread) {
  char path[64], text[64] = {};
  snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", int(thread));
  FILE* file = fopen(path, "r");
  if (file == nullptr) return false;
  const bool read = fgets(text, sizeof(text), file) != nullptr;
  fclose(file);
  return read && atoi(text) == SYS_futex;
}

void Allocate(CUcontext context) {
  CUdeviceptr address = 0;
  EXPECT(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  changes_the_table = true;
  EXPECT(cuMemAlloc_v2(&address, kPiece) == CUDA_SUCCESS);
  changes_the_table = false;
}

}  // namespace

extern "C" void* realloc(void* old, size_t size) {
  void* fresh = malloc(size);
  if (old == nullptr || fresh == nullptr) return fresh;
  const size_t had = malloc_usable_size(old);
  memcpy(fresh, old, std::min(size, had));
  if (changes_the_table && size == 2 * kRoom * sizeof(void*)) {
    memset(old, 0x5a, had);
    step.store(kInRealloc);
    while (step.load() != kForked && !(step.load() == kForking && WaitsForALock(getpid()))) {
      usleep(1000);
    }
  }
  free(old);
  return fresh;
}

int main() {
  alarm(60);
  CUcontext context = nullptr;
  EXPECT(cuInit(0) == CUDA_SUCCESS);
  EXPECT(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  EXPECT(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  for (size_t i = 0; i < kRoom; ++i) {
    CUdeviceptr address = 0;
    EXPECT(cuMemAlloc_v2(&address, kPiece) == CUDA_SUCCESS);
  }
  std::thread other(Allocate, context);
  while (step.load() != kInRealloc) usleep(1000);
  step.store(kForking);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  step.store(kForked);
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) printf("the child died of signal %d\n", WTERMSIG(status));
  EXPECT(status == 0);
  other.join();
  puts("EXIT-SUCCESS");
  return 0;
}
