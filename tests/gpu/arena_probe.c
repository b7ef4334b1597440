// Measures the first use of 16 GiB of an arena's memory: allocation, touching by all processors,
// and registration by one, two, four and eight threads.
//
//   gcc -O2 -pthread arena_probe.c -I/usr/local/cuda/include -lcuda -o arena_probe && ./arena_probe
//
// Needs root, because it mounts a tmpfs like the arena's.
#define _GNU_SOURCE
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

static const size_t kBytes = 16ull << 30;
static const size_t kTouched = 16ull << 20;      // at a time
static const size_t kRegistered = 256ull << 20;  // at a time

static char* memory;
static size_t next_touched, next_registered;
static int untouched[1024];  // remaining items of each registered piece
static double touched_at;
static CUcontext context;

static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void Must(int good, const char* what) {
  if (good) return;
  perror(what);
  exit(1);
}

static void* Touch(void* unused) {
  for (size_t at; (at = __atomic_fetch_add(&next_touched, kTouched, __ATOMIC_SEQ_CST)) < kBytes;) {
    Must(madvise(memory + at, kTouched, MADV_POPULATE_WRITE) == 0, "madvise");
    __atomic_sub_fetch(&untouched[at / kRegistered], 1, __ATOMIC_SEQ_CST);
    if (at + kTouched >= kBytes) touched_at = Now();
  }
  return unused;
}

static void* Register(void* unused) {
  Must(cuCtxSetCurrent(context) == CUDA_SUCCESS, "cuCtxSetCurrent");
  for (size_t at;
       (at = __atomic_fetch_add(&next_registered, kRegistered, __ATOMIC_SEQ_CST)) < kBytes;) {
    while (__atomic_load_n(&untouched[at / kRegistered], __ATOMIC_SEQ_CST) > 0) usleep(100);
    Must(cuMemHostRegister(memory + at, kRegistered, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS,
         "cuMemHostRegister");
  }
  return unused;
}

static void Measure(const char* folder, int touching, int registering) {
  char path[64];
  snprintf(path, sizeof path, "%s/file", folder);
  const int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  Must(fd >= 0, path);
  unlink(path);
  Must(fallocate(fd, 0, 0, kBytes) == 0, "fallocate");
  memory = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  Must(memory != MAP_FAILED, "mmap");
  madvise(memory, kBytes, MADV_HUGEPAGE);
  next_touched = next_registered = 0;
  for (size_t i = 0; i < kBytes / kRegistered; ++i) untouched[i] = kRegistered / kTouched;
  pthread_t threads[64];
  int count = 0;
  const double began = Now();
  for (int i = 0; i < touching; ++i) pthread_create(&threads[count++], NULL, Touch, NULL);
  for (int i = 0; i < registering; ++i) pthread_create(&threads[count++], NULL, Register, NULL);
  for (int i = 0; i < count; ++i) pthread_join(threads[i], NULL);
  printf("touching %d, registering %d: %.3f s, touched after %.3f s\n", touching, registering,
         Now() - began, touched_at - began);
  for (size_t at = 0; at < kBytes; at += kRegistered) cuMemHostUnregister(memory + at);
  munmap(memory, kBytes);
  close(fd);
}

int main(void) {
  char folder[] = "/tmp/arena_probe.XXXXXX";
  Must(mkdtemp(folder) != NULL, folder);
  Must(mount("none", folder, "tmpfs", 0, "huge=always,noswap") == 0, "mount");
  CUdevice device;
  Must(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
           cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS,
       "the GPU");
  const int touching[] = {16, 16, 12, 8, 4};  // the first one also absorbs costs that occur once
                                              // per boot
  for (size_t i = 0; i < sizeof touching / sizeof *touching; ++i) {
    for (int registering = 1; registering <= 4; registering *= 2) {
      Measure(folder, touching[i], registering);
    }
  }
  umount(folder);
  rmdir(folder);
  return 0;
}
