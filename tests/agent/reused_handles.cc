// Tests the agent with a driver that reuses a handle or an address as soon as it is freed: another
// thread gets it before the freeing call returns. Prints EXIT-SUCCESS at the end.
//
//   agent_reused_handles [context | pool | address | stream]

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <thread>

#include "abi/cuda/driver_functions.h"
#include "reused_handles_driver.h"

using namespace stasis::cuda;  // NOLINT

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) {                                            \
      printf("line %d: check failed: %s\n", __LINE__, #condition); \
      exit(1);                                                     \
    }                                                              \
  } while (0)
#define MUST(call) EXPECT((call) == CUDA_SUCCESS)

namespace {

constexpr size_t kLarge = 32 << 20;
constexpr size_t kTiny = 512 << 10;

ReusedHandlesDriver& driver = *TheReusedHandlesDriver();
CUcontext context;
CUmemoryPool pool;
CUstream stream;
CUdeviceptr address;

template <void (*kDo)()>
void InAnotherThread() {
  std::thread(kDo).join();
}

void MakePool() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  MUST(cuMemPoolCreate(&pool, &properties));
}

// The agent serves this pool's allocations.
void ExpectCarriedPool() {
  CUdeviceptr from_pool = 0;
  MUST(cuMemAllocFromPoolAsync(&from_pool, kLarge, pool, nullptr));
  EXPECT(from_pool != kPlainAddress);
}

void APool() {
  MakePool();
  const CUmemoryPool first = pool;
  driver.after_return = InAnotherThread<MakePool>;
  MUST(cuMemPoolDestroy(first));
  EXPECT(pool == first);
  ExpectCarriedPool();
  driver.pools_stay = true;
  EXPECT(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
  driver.pools_stay = false;
  ExpectCarriedPool();
  MUST(cuMemPoolDestroy(pool));
}

void MakeContext() {
  MUST(cuCtxCreate_v2(&context, 0, 0));
  MUST(cuMemAlloc_v2(&address, kLarge));
}

void AContext() {
  const CUcontext first = context;
  const CUdeviceptr of_first = address;
  driver.after_return = InAnotherThread<MakeContext>;
  MUST(cuCtxDestroy_v2(first));
  EXPECT(context == first && address != of_first);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  MUST(cuMemGetAddressRange_v2(&base, &bytes, address));
  EXPECT(base == address && bytes == kLarge);
  EXPECT(cuMemGetAddressRange_v2(&base, &bytes, of_first) == CUDA_ERROR_INVALID_VALUE);
  MUST(cuCtxSetCurrent(context));
}

void AllocateTiny() {
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemAlloc_v2(&address, kTiny));
}

// The driver serves tiny allocations up to 16 MiB on a device, so their count must not drift.
void AnAddress() {
  for (int i = 0; i < 100; ++i) {
    AllocateTiny();
    EXPECT(address == kPlainAddress);
    driver.after_return = InAnotherThread<AllocateTiny>;
    MUST(cuMemFree_v2(kPlainAddress));
    EXPECT(address == kPlainAddress);
    MUST(cuMemFree_v2(kPlainAddress));
  }
}

void Capture() {
  MUST(cuStreamCreate(&stream, 0));
  MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

// A wait for the GPU invalidates a capture.
void AStream() {
  CUdeviceptr piece = 0;
  MUST(cuMemAlloc_v2(&piece, kLarge));
  MUST(cuStreamCreate(&stream, 0));
  driver.after_return = InAnotherThread<Capture>;
  MUST(cuStreamDestroy_v2(stream));
  driver.synchronized = 0;
  MUST(cuMemFree_v2(piece));
  EXPECT(driver.synchronized == 0);
  MUST(cuStreamDestroy_v2(stream));
  EXPECT(driver.synchronized == 1);
}

struct Case {
  const char* name;
  void (*run)();
};
constexpr Case kCases[] = {
    {"context", AContext}, {"pool", APool}, {"address", AnAddress}, {"stream", AStream}};

}  // namespace

int main(int argc, char** argv) {
  alarm(60);
  MUST(cuInit(0));
  MakeContext();
  for (const Case& one : kCases) {
    if (argc < 2 || strcmp(argv[1], one.name) == 0) one.run();
  }
  puts("EXIT-SUCCESS");
  return 0;
}
