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
static CUmodule module;
static CUfunction kernel;
static CUgraph graph;
static CUmemGenericAllocationHandle piece;
static CUdeviceptr mapped;
static char bus[32];
static const char* function;
static volatile unsigned long* count;

static const char kPtx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 p)\n{\nret;\n}\n";

static void nothing(void* unused) { (void)unused; }
static size_t no_memory(int unused) { return 0 * unused; }

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
  CUfunction found;
  cuuint64_t wide;
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
  char name[100];
  unsigned long long id;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUfunc_cache cache;
  CUsharedconfig sharing;
  CUexecAffinityParam affinity;
  CUmodule m;
  CUfunctionLoadingState state;
  CUlibrary library;
  CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* data[] = {&number};
  IF(cuDeviceGet, &d, 0)
  IF(cuDeviceGetCount, &number)
  IF(cuDeviceGetName, name, sizeof name, device)
  IF(cuDeviceGetLuid, name, &flags, device)
  IF(cuDeviceTotalMem, &a, device)
  IF(cuDeviceComputeCapability, &number, &number, device)
  IF(cuDeviceGetPCIBusId, name, sizeof name, device)
  IF(cuDeviceGetByPCIBusId, &d, bus)
  IF(cuDeviceCanAccessPeer, &number, device, device)
  IF(cuDeviceGetP2PAttribute, &number, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, device, device)
  IF(cuDeviceGetExecAffinitySupport, &number, CU_EXEC_AFFINITY_TYPE_SM_COUNT, device)
  if (strcmp(function, "cuCtxPushCurrent") == 0) {
    cuCtxPushCurrent(context);
    cuCtxPopCurrent(&c);
    return;
  }
  IF(cuCtxGetFlags, &flags)
  IF(cuCtxGetId, context, &id)
  IF(cuCtxGetApiVersion, context, &flags)
  IF(cuCtxGetCacheConfig, &cache)
  IF(cuCtxGetSharedMemConfig, &sharing)
  IF(cuCtxGetStreamPriorityRange, &number, &number)
  IF(cuCtxGetExecAffinity, &affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT)
  IF(cuModuleGetFunctionCount, &flags, module)
  IF(cuModuleEnumerateFunctions, &found, 1, module)
  IF(cuModuleGetFunction, &found, module, "nothing")
  IF(cuKernelGetLibrary, &library, (CUkernel)kernel)
  IF(cuFuncGetAttribute, &number, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel)
  IF(cuFuncGetModule, &m, kernel)
  IF(cuFuncGetName, &text, kernel)
  IF(cuFuncGetParamInfo, kernel, 0, &a, &b)
  IF(cuFuncIsLoaded, &state, kernel)
  IF(cuOccupancyMaxActiveBlocksPerMultiprocessor, &number, kernel, 128, 0)
  IF(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, &number, kernel, 128, 0, 0)
  IF(cuOccupancyMaxPotentialBlockSize, &number, &number, kernel, no_memory, 0, 0)
  IF(cuOccupancyAvailableDynamicSMemPerBlock, &a, kernel, 1, 128)
  IF(cuMemHostGetFlags, &flags, pinned)
  IF(cuPointerGetAttributes, 1, &attribute, data, memory)
  IF(cuMemGetAccess, &id, &location, mapped)
  IF(cuMemGetAllocationGranularity, &a, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)
  IF(cuMemGetAllocationPropertiesFromHandle, &prop, piece)
  IF(cuStreamGetPriority, stream, &number)
  IF(cuStreamGetId, stream, &id)
  IF(cuStreamGetDevice, stream, &d)
  IF(cuStreamGetCaptureInfo, stream, &status, &wide, NULL, NULL, NULL, NULL)
  IF(cuThreadExchangeStreamCaptureMode, &mode)
  IF(cuGraphGetNodes, graph, NULL, &a)
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
  MUST(cuModuleLoadData(&module, kPtx));
  MUST(cuModuleGetFunction(&kernel, module, "nothing"));
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuDeviceGetPCIBusId(bus, sizeof bus, device));
  const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  MUST(cuMemCreate(&piece, 2 << 20, &prop, 0));
  MUST(cuMemAddressReserve(&mapped, 2 << 20, 0, 0, 0));
  MUST(cuMemMap(mapped, 2 << 20, 0, piece, 0));
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
