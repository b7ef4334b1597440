// A program for tests to control. It loads libcuda.so.1, reads one command per line from stdin, and
// writes one answer per line to stdout ("ok …" or "error …"). It exits at end-of-file.
//
//   init           cuInit
//   alloc BYTES    primary context, device memory filled with a pattern
//   check          verify the pattern
//   managed BYTES  managed memory
//   fork           fork a child without exec that only waits: "ok PID"
//   thread         start a thread that only waits: "ok TID"
//   stall          start GPU work that does not finish before "unstall"
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "abi/cuda/driver_functions.h"

namespace {

using namespace stasis::cuda;  // NOLINT

void* library = nullptr;
std::vector<unsigned char> pattern;
CUdeviceptr memory = 0;

// Calls `symbol` of the driver and returns its result.
template <class Function, class... Arguments>
CUresult CallDriver(const char* symbol, Arguments... arguments) {
  auto function = reinterpret_cast<Function*>(dlsym(library, symbol));
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
}
#define DRIVER(symbol, ...) CallDriver<fn::symbol>(#symbol, __VA_ARGS__)

CUresult OpenContext() {
  CUdevice device;
  CUcontext context;
  CUresult result = DRIVER(cuDeviceGet, &device, 0);
  if (result == CUDA_SUCCESS) result = DRIVER(cuDevicePrimaryCtxRetain, &context, device);
  if (result == CUDA_SUCCESS) result = DRIVER(cuCtxSetCurrent, context);
  return result;
}

CUresult Allocate(size_t bytes) {
  CUresult result = OpenContext();
  if (result == CUDA_SUCCESS) result = DRIVER(cuMemAlloc_v2, &memory, bytes);
  if (result != CUDA_SUCCESS) return result;
  pattern.resize(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<unsigned char>(i * 7 + i / 4093 + 1);
  return DRIVER(cuMemcpyHtoD_v2, memory, static_cast<const void*>(pattern.data()), bytes);
}

std::string Check() {
  std::vector<unsigned char> found(pattern.size());
  CUresult result = DRIVER(cuMemcpyDtoH_v2, static_cast<void*>(found.data()), memory, found.size());
  if (result != CUDA_SUCCESS) return "error " + std::to_string(result);
  return found == pattern ? "ok" : "error the pattern is gone";
}

CUresult Managed(size_t bytes) {
  CUdeviceptr managed;
  CUresult result = OpenContext();
  if (result == CUDA_SUCCESS) result = DRIVER(cuMemAllocManaged, &managed, bytes, 1u);
  return result;
}

std::string Fork() {
  pid_t child = fork();
  if (child > 0) return "ok " + std::to_string(child);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) pause();
}

std::string Thread() {
  std::promise<pid_t> tid;
  std::thread([&tid] {
    tid.set_value(static_cast<pid_t>(syscall(SYS_gettid)));
    for (;;) pause();
  }).detach();
  return "ok " + std::to_string(tid.get_future().get());
}

std::promise<void> unstall;

CUresult Stall() {
  CUresult result = OpenContext();
  if (result != CUDA_SUCCESS) return result;
  return DRIVER(
      cuLaunchHostFunc, CUstream{nullptr}, [](void*) { unstall.get_future().wait(); },
      static_cast<void*>(nullptr));
}

std::string Do(const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  size_t bytes = 0;
  words >> verb >> bytes;
  auto answer = [](CUresult result) {
    return result == CUDA_SUCCESS ? std::string("ok") : "error " + std::to_string(result);
  };
  if (verb == "init") return answer(DRIVER(cuInit, 0u));
  if (verb == "alloc") return answer(Allocate(bytes));
  if (verb == "managed") return answer(Managed(bytes));
  if (verb == "check") return Check();
  if (verb == "stall") return answer(Stall());
  if (verb == "unstall") {
    unstall.set_value();
    return "ok";
  }
  if (verb == "fork") return Fork();
  if (verb == "thread") return Thread();
  return "error unknown command";
}

}  // namespace

int main() {
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::cout << "error " << dlerror() << std::endl;
    return 1;
  }
  std::cout << "ok" << std::endl;
  for (std::string line; std::getline(std::cin, line);) std::cout << Do(line) << std::endl;
  _exit(0);
}
