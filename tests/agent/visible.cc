// A program under the agent with CUDA_VISIBLE_DEVICES, on three software GPUs: it sees what it
// would see without the agent, and the driver can move it to a GPU that it does not see. Prints
// EXIT-SUCCESS at the end.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "abi/cuda/driver_functions.h"

using namespace stasis::cuda;  // NOLINT

#define EXPECT_IS(wanted, call)                                                       \
  do {                                                                                \
    const long long got_ = (long long)(call), wanted_ = (long long)(wanted);          \
    if (got_ != wanted_) {                                                            \
      printf("line %d: %s is %lld, expected %lld\n", __LINE__, #call, got_, wanted_); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)
#define MUST(call) EXPECT_IS(CUDA_SUCCESS, call)

namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";
constexpr size_t kBytes = 1 << 20;

// Runs `f` in a child, which has not used the driver, with a value of the variable.
template <class F>
void Under(const char* value, F f) {
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    if (value == nullptr) {
      unsetenv(kVariable);
    } else {
      setenv(kVariable, value, 1);
    }
    f();
    fflush(stdout);
    const char* now = getenv(kVariable);
    const std::string left = now != nullptr ? now : "(unset)";
    const std::string right = value != nullptr ? value : "(unset)";
    if (left != right) {
      printf("the variable is %s in the end, expected %s\n", left.c_str(), right.c_str());
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_IS(0, status);
}

int Count() {
  int count = -1;
  MUST(cuDeviceGetCount(&count));
  return count;
}

// The number of the machine's GPU behind a device.
int NumberOf(CUdevice device) {
  CUuuid uuid{};
  MUST(cuDeviceGetUuid_v2(&uuid, device));
  return uuid.bytes[15];
}

std::string BusIdOf(CUdevice device) {
  char text[32] = {};
  MUST(cuDeviceGetPCIBusId(text, sizeof(text), device));
  return text;
}

std::vector<int> Gpus() {
  std::vector<int> gpus;
  for (int i = 0; i < Count(); ++i) gpus.push_back(NumberOf(i));
  return gpus;
}

void ExpectHidden(CUdevice hidden) {
  CUdevice device = 0;
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, hidden));
  char text[64];
  int value = 0, other = 0;
  size_t bytes = 0;
  unsigned flags = 0;
  CUuuid uuid{};
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(text, sizeof(text), hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetUuid(&uuid, hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetUuid_v2(&uuid, hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem_v2(&bytes, hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE,
            cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceComputeCapability(&value, &other, hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetPCIBusId(text, sizeof(text), hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&value, 0, hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&value, hidden, 0));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxGetState(hidden, &flags, &value));
  CUcontext context = nullptr;
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&context, hidden));
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate_v2(&context, 0, hidden));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, hidden};
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, 2 << 20, &properties, 0));
  CUmemPoolProps pool_properties{};
  pool_properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool_properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, hidden};
  CUmemoryPool pool = nullptr;
  EXPECT_IS(true, cuMemPoolCreate(&pool, &pool_properties) != CUDA_SUCCESS);
}

void Move(pid_t pid, const std::vector<std::pair<int, int>>& moves) {
  std::vector<CUcheckpointGpuPair> pairs;
  for (const auto& [from, to] : moves) {
    CUcheckpointGpuPair pair{};
    MUST(cuDeviceGetUuid_v2(&pair.oldUuid, from));
    MUST(cuDeviceGetUuid_v2(&pair.newUuid, to));
    pairs.push_back(pair);
  }
  MUST(cuCheckpointProcessLock(pid, nullptr));
  MUST(cuCheckpointProcessCheckpoint(pid, nullptr));
  CUcheckpointRestoreArgs restore{};
  restore.gpuPairs = pairs.data();
  restore.gpuPairsCount = unsigned(pairs.size());
  MUST(cuCheckpointProcessRestore(pid, &restore));
  MUST(cuCheckpointProcessUnlock(pid, nullptr));
}

// The program sees GPU 1 only, and is moved to GPU 2 and back.
void MovesToAHiddenGpu() {
  int in[2], out[2];
  EXPECT_IS(0, pipe(in));
  EXPECT_IS(0, pipe(out));
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    close(in[1]);  // so that it ends if its parent does
    close(out[0]);
    setenv(kVariable, "1", 1);
    MUST(cuInit(0));
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc_v2(&memory, kBytes));
    MUST(cuMemsetD8_v2(memory, 0x5a, kBytes));
    for (const int gpu : {1, 2, 1}) {
      EXPECT_IS(1, Count());
      EXPECT_IS(gpu, NumberOf(0));
      ExpectHidden(1);
      std::vector<char> found(kBytes);
      MUST(cuMemcpyDtoH_v2(found.data(), memory, kBytes));
      EXPECT_IS(1, found == std::vector<char>(kBytes, 0x5a));
      char byte = 'x';
      EXPECT_IS(1, write(out[1], &byte, 1));
      EXPECT_IS(1, read(in[0], &byte, 1));
    }
    _exit(0);
  }
  close(in[0]);
  close(out[1]);
  MUST(cuInit(0));
  char byte = 0;
  for (int moves = 0; moves < 2; ++moves) {
    EXPECT_IS(1, read(out[0], &byte, 1));
    Move(pid, {{0, 0}, {1, 2}, {2, 1}});
    EXPECT_IS(1, write(in[1], &byte, 1));
  }
  EXPECT_IS(1, read(out[0], &byte, 1));
  EXPECT_IS(1, write(in[1], &byte, 1));
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_IS(0, status);
}

}  // namespace

int main() {
  // Without the variable; and the address of a function by cuGetProcAddress.
  Under(nullptr, [] {
    MUST(cuInit(0));
    EXPECT_IS(3, Count());
    EXPECT_IS(1, Gpus() == (std::vector<int>{0, 1, 2}));
    void* found = nullptr;
    MUST(cuGetProcAddress("cuDeviceGetCount", &found, 12000, 0));
    EXPECT_IS(1, found == reinterpret_cast<void*>(&cuDeviceGetCount));
  });
  Under("1", [] {
    MUST(cuInit(0));
    MUST(cuInit(0));
    EXPECT_IS(1, Count());
    EXPECT_IS(1, NumberOf(0));
    for (const CUdevice hidden : {1, 2, 3}) ExpectHidden(hidden);
    CUdevice device = -1;
    MUST(cuDeviceGetByPCIBusId(&device, BusIdOf(0).c_str()));
    EXPECT_IS(0, device);
  });
  Under("2,0", [] {
    MUST(cuInit(0));
    EXPECT_IS(1, Gpus() == (std::vector<int>{2, 0}));
    ExpectHidden(2);
  });
  Under("2,1,0", [] {
    MUST(cuInit(0));
    EXPECT_IS(1, Gpus() == (std::vector<int>{2, 1, 0}));
    CUdevice device = 0;
    EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 3));
  });
  Under("1,9,0", [] {
    MUST(cuInit(0));
    EXPECT_IS(1, Gpus() == std::vector<int>{1});
  });
  Under("0,0", [] { EXPECT_IS(CUDA_ERROR_INVALID_DEVICE, cuInit(0)); });
  for (const char* none : {"", "-1", "NoDevFiles", "MIG-1"}) {
    Under(none, [] { EXPECT_IS(CUDA_ERROR_NO_DEVICE, cuInit(0)); });
  }
  // Without /proc/driver/nvidia, the driver itself hides the GPUs of such a list.
  Under("GPU-536f6674-4750-5500-0000-000000000001", [] {
    MUST(cuInit(0));
    EXPECT_IS(1, Gpus() == std::vector<int>{1});
    ExpectHidden(1);
  });
  // A program may change its environment before it uses the driver.
  Under("0", [] {
    setenv(kVariable, "1,0", 1);
    MUST(cuInit(0));
    EXPECT_IS(1, Gpus() == (std::vector<int>{1, 0}));
    setenv(kVariable, "0", 1);
    EXPECT_IS(2, Count());
  });
  MovesToAHiddenGpu();
  puts("EXIT-SUCCESS");
  return 0;
}
