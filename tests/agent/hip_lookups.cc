// Look-ups of HIP's functions and calls of some of them, with the agent and softgpu's HIP library.
// With the argument "both", the process uses CUDA and loads HIP's library as well.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "abi/hip/functions.h"

using namespace stasis::hip;  // NOLINT: the official names
namespace fn_of_hip = stasis::hip::fn;

// Resolves to the agent's function, because a preloaded library is searched first.
extern "C" CUresult hipMemGetInfo(size_t* left, size_t* total);

namespace {

void Demand(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "failed: %s\n", what);
  exit(1);
}

template <class F>
F* Find(void* library, const char* name) {
  auto* found = reinterpret_cast<F*>(dlsym(library, name));
  Demand(found != nullptr, name);
  return found;
}

// Returns the library whose code is at this address.
const char* OwnerOf(void* address) {
  Dl_info info{};
  Demand(dladdr(address, &info) != 0, "an address without a library");
  return info.dli_fname;
}

bool IsAgents(void* address) { return strstr(OwnerOf(address), "libstasis-agent") != nullptr; }

void CheckHooks(void* hip) {
  for (const char* name :
       {"hipMalloc", "hipFree", "hipMemCreate", "hipLaunchKernel", "hipMemcpyAsync_spt",
        "hipStreamSynchronize", "hipGraphLaunch", "hipPointerGetAttributes", "hipCtxCreate"}) {
    Demand(IsAgents(dlsym(hip, name)), name);
    Demand(IsAgents(dlsym(RTLD_DEFAULT, name)), name);
  }
  for (const char* name : {"hipRuntimeGetVersion", "hipGetDevice", "hipGetErrorString"}) {
    Demand(!IsAgents(dlsym(hip, name)), name);
  }
  void* found = nullptr;
  auto* ask = Find<fn_of_hip::hipGetProcAddress>(hip, "hipGetProcAddress");
  Demand(ask("hipMalloc", &found, 60400000, 0, nullptr) == CUDA_SUCCESS && IsAgents(found),
         "hipGetProcAddress returns the hook");
}

// The agent describes its memory as HIP describes memory of hipMalloc.
void CheckMemory(void* hip) {
  constexpr size_t kBytes = 32 << 20;
  CUdeviceptr ptr = 0;
  Demand(Find<fn_of_hip::hipMalloc>(hip, "hipMalloc")(&ptr, kBytes) == CUDA_SUCCESS, "hipMalloc");
  void* inside = reinterpret_cast<char*>(ptr) + 4096;
  size_t bytes = 0;
  Demand(
      Find<fn_of_hip::hipMemPtrGetInfo>(hip, "hipMemPtrGetInfo")(inside, &bytes) == CUDA_SUCCESS &&
          bytes == kBytes,
      "hipMemPtrGetInfo");
  hipPointerAttribute_t about{};
  auto* describe = Find<fn_of_hip::hipPointerGetAttributes>(hip, "hipPointerGetAttributes");
  Demand(describe(&about, inside) == CUDA_SUCCESS && about.type == hipMemoryTypeDevice &&
             about.device == 0 && about.devicePointer == inside && about.hostPointer == nullptr,
         "hipPointerGetAttributes");
  char host[64], back[64];
  for (size_t i = 0; i < sizeof(host); ++i) host[i] = char(i * 7);
  auto* copy = Find<fn_of_hip::hipMemcpy>(hip, "hipMemcpy");
  Demand(copy(inside, host, sizeof(host), hipMemcpyHostToDevice) == CUDA_SUCCESS &&
             copy(back, inside, sizeof(back), hipMemcpyDeviceToHost) == CUDA_SUCCESS &&
             memcmp(host, back, sizeof(host)) == 0,
         "hipMemcpy");
  auto* free_memory = Find<fn_of_hip::hipFree>(hip, "hipFree");
  Demand(free_memory(ptr) == CUDA_SUCCESS && free_memory(0) == CUDA_SUCCESS, "hipFree");
  void* rows = nullptr;
  size_t pitch = 0;
  Demand(Find<fn_of_hip::hipMallocPitch>(hip, "hipMallocPitch")(&rows, &pitch, 5000, 4000) ==
                 CUDA_SUCCESS &&
             pitch >= 5000,
         "hipMallocPitch");
  Demand(Find<fn_of_hip::hipDeviceReset>(hip, "hipDeviceReset")() == CUDA_SUCCESS,
         "hipDeviceReset");
  Demand(Find<fn_of_hip::hipMalloc>(hip, "hipMalloc")(&ptr, kBytes) == CUDA_SUCCESS,
         "hipMalloc after a reset");
}

// In a process that uses CUDA, HIP's functions are not hooked.
void CheckBoth() {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  void* hip = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_GLOBAL);
  Demand(cuda != nullptr && hip != nullptr, "both libraries");
  Demand(Find<stasis::cuda::fn::cuInit>(cuda, "cuInit")(0) == CUDA_SUCCESS, "cuInit");
  Demand(IsAgents(dlsym(cuda, "cuMemAlloc_v2")), "cuMemAlloc is hooked");
  Demand(!IsAgents(dlsym(hip, "hipMalloc")), "hipMalloc is not hooked");
  // The program's own calls reach HIP, which softgpu does not allow beside CUDA.
  size_t left = 0, total = 0;
  Demand(hipMemGetInfo(&left, &total) != CUDA_SUCCESS, "hipMemGetInfo is HIP's");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "both") == 0) {
    CheckBoth();
  } else {
    void* hip = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_GLOBAL);
    Demand(hip != nullptr, "libamdhip64.so.6");
    CheckHooks(hip);
    CheckMemory(hip);
  }
  puts("EXIT-SUCCESS");
  return 0;
}
