/* lock_probe FUNCTION FILE: calls one driver function continuously from a separate thread, and
 * counts the completed calls in the 8 bytes of FILE. Prints READY; runs forever. See lock_probe.py.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MUST(call)                                     \
  do {                                                 \
    const CUresult result = (call);                    \
    if (result != CUDA_SUCCESS) {                      \
      fprintf(stderr, "%s: %d\n", #call, (int)result); \
      exit(1);                                         \
    }                                                  \
  } while (0)

static CUdevice device;
static CUcontext context;
static CUstream stream;
static CUevent event, before;
static CUdeviceptr memory;
static void* pinned;
static const char* function;
static volatile unsigned long* count;

static void nothing(void* unused) { (void)unused; }

static void call(void) {
#define IF(name, ...)                 \
  if (strcmp(function, #name) == 0) { \
    name(__VA_ARGS__);                \
    return;                           \
  }
  int number;
  unsigned flags;
  size_t a, b;
  float milliseconds;
  CUcontext c;
  CUdevice d;
  CUdeviceptr p;
  CUuuid uuid;
  CUstreamCaptureStatus status;
  const char* text;
  IF(cuStreamQuery, stream)
  IF(cuEventQuery, event)
  IF(cuEventElapsedTime, &milliseconds, before, event)
  IF(cuStreamSynchronize, stream)
  IF(cuEventSynchronize, event)
  IF(cuCtxSynchronize)
  IF(cuMemGetInfo, &a, &b)
  IF(cuCtxGetCurrent, &c)
  IF(cuCtxSetCurrent, context)
  IF(cuCtxGetDevice, &d)
  IF(cuCtxGetLimit, &a, CU_LIMIT_STACK_SIZE)
  IF(cuPointerGetAttribute, &p, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, memory)
  IF(cuMemGetAddressRange, &p, &a, memory)
  IF(cuMemHostGetDevicePointer, &p, pinned, 0)
  IF(cuStreamGetFlags, stream, &flags)
  IF(cuStreamGetCtx, stream, &c)
  IF(cuStreamIsCapturing, stream, &status)
  IF(cuDeviceGetAttribute, &number, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device)
  IF(cuDeviceGetUuid, &uuid, device)
  IF(cuDevicePrimaryCtxGetState, device, &flags, &number)
  IF(cuGetErrorString, CUDA_SUCCESS, &text)
  IF(cuEventRecord, event, stream)
  IF(cuMemsetD8Async, memory, 1, 64, stream)
  IF(cuLaunchHostFunc, stream, nothing, NULL)
  fprintf(stderr, "lock_probe does not know %s\n", function);
  exit(2);
}

static void* calls(void* unused) {
  const struct timespec rest = {0, 200 * 1000};
  MUST(cuCtxSetCurrent(context));
  for (;;) {
    call();
    ++*count;
    nanosleep(&rest, NULL);
  }
  return unused;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  function = argv[1];
  const int file = open(argv[2], O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof *count) != 0) return 2;
  count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (count == MAP_FAILED) return 2;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&before, 0));
  MUST(cuEventCreate(&event, 0));
  MUST(cuMemAlloc(&memory, 1 << 20));
  MUST(cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  MUST(cuMemsetD8Async(memory, 1, 1 << 20, stream));
  MUST(cuEventRecord(before, stream));
  MUST(cuEventRecord(event, stream));
  MUST(cuStreamSynchronize(stream));
  pthread_t thread;
  pthread_create(&thread, NULL, calls, NULL);
  puts("READY");
  fflush(stdout);
  for (;;) pause();
}
