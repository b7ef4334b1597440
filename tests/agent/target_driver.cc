#include "target_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utility>

namespace target {

Api api;

[[noreturn]] void Die(const char* what, int code) {
  printf("FAILED %s %d\n", what, code);
  fflush(stdout);
  _exit(1);
}

void Must(CUresult r, const char* what) {
  if (r != CUDA_SUCCESS) Die(what, r);
}

#ifdef TARGET_HIP

namespace {

// HIP before 7.1 takes the address of a descriptor.
decltype(Api::cuMemImportFromShareableHandle) import_by_address;
CUresult Import(CUmemGenericAllocationHandle* handle, void* fd, CUmemAllocationHandleType type) {
  int descriptor = int(reinterpret_cast<intptr_t>(fd));
  return import_by_address(handle, &descriptor, type);
}

// The only function that ends a HIP program's state on a device.
CUresult (*reset)();
CUresult Reset(CUdevice) { return reset(); }

}  // namespace

// Binds the driver functions' pointers to HIP's functions. The program must not link libcuda.
void UseLookup(const std::string& way) {
  void* hip = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_GLOBAL);
  if (hip == nullptr) Die(dlerror(), 0);
  auto find = [&](const char* driver) {
    static constexpr struct {
      const char* driver;
      const char* hip;
    } kPairs[] = {
#define STASIS_HIP_SAME(symbol, driver) {#driver, #symbol},
#include "abi/hip/functions.def"
    };
    for (const auto& pair : kPairs) {
      if (strcmp(pair.driver, driver) != 0) continue;
      // "direct": found as if the program were linked to the library.
      void* address = dlsym(way == "direct" ? RTLD_DEFAULT : hip, pair.hip);
      if (address != nullptr) return address;
    }
    Die(driver, 0);
  };
#define FIND(symbol, name) api.symbol = reinterpret_cast<decltype(api.symbol)>(find(#symbol));
  FUNCTIONS(FIND)
  api.cuDevicePrimaryCtxReset_v2 = &Reset;
  reset = reinterpret_cast<decltype(reset)>(dlsym(RTLD_DEFAULT, "hipDeviceReset"));
  import_by_address = std::exchange(api.cuMemImportFromShareableHandle, &Import);
}

#else

using Runtime = int (*)(const char*, void**, unsigned, unsigned long long, unsigned*);

void UseLookup(const std::string& way) {
  if (way == "direct") {
#define DIRECT(symbol, name) api.symbol = &::stasis::cuda::symbol;
    FUNCTIONS(DIRECT)
    return;
  }
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) Die(dlerror(), 0);
  auto* ask = reinterpret_cast<fn::cuGetProcAddress_v2*>(dlsym(driver, "cuGetProcAddress_v2"));
  Runtime runtime = nullptr;
  if (way == "cudart") {
    void* cudart = dlopen(getenv("SOFTGPU_CUDART"), RTLD_NOW | RTLD_LOCAL);
    if (cudart == nullptr) Die(dlerror(), 0);
    runtime = reinterpret_cast<Runtime>(dlsym(cudart, "cudaGetDriverEntryPointByVersion"));
  }
  auto find = [&](const char* symbol, const char* name) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    unsigned found = 0;
    // Looks up the versions of CUDA 11.8, except cuCtxCreate_v2, which is found by its symbol.
    if (way == "dlsym") address = dlsym(driver, symbol);
    if (way == "lookup") ask(name, &address, 11080, 0, &status);
    if (way == "cudart") runtime(name, &address, 11080, 0, &found);
    if (strcmp(symbol, "cuCtxCreate_v2") == 0) address = dlsym(driver, symbol);
    if (address == nullptr) Die(symbol, 0);
    return address;
  };
#define FIND(symbol, name) api.symbol = reinterpret_cast<decltype(api.symbol)>(find(#symbol, name));
  FUNCTIONS(FIND)
}

#endif

}  // namespace target
