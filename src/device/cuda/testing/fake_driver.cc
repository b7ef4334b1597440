// A libcuda.so.1 for tests of device control. It has no GPU, only process states, kept in files
// shared by all processes, and faults that a test selects. It covers cases that softgpu cannot,
// such as an old driver or one that does not start.
//
// The files are in $STASIS_FAKE_DRIVER:
//
//   <pid>                     one digit: the state of a process that has called cuInit
//   fault.<function>          the fault of every call of the function: "hang", "die", the number of
//                             a CUresult, or "wait" (until the file is removed)
//   fault.<function>.<pid>    the same for calls on one process
//   fault.<function>.by.<pid> the same for calls of one process
//
// With STASIS_FAKE_OLD_DRIVER it has no checkpoint functions.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "abi/cuda/driver_functions.h"

namespace stasis::cuda {
namespace {

std::string Path(const std::string& name) {
  const char* dir = std::getenv("STASIS_FAKE_DRIVER");
  return std::string(dir == nullptr ? "/nonexistent" : dir) + "/" + name;
}

bool Read(const std::string& name, std::string* text) {
  FILE* file = std::fopen(Path(name).c_str(), "re");
  if (file == nullptr) return false;
  char buffer[64] = {};
  size_t size = std::fread(buffer, 1, sizeof buffer - 1, file);
  std::fclose(file);
  text->assign(buffer, size);
  return true;
}

void Write(int pid, int state) {
  FILE* file = std::fopen(Path(std::to_string(pid)).c_str(), "we");
  if (file == nullptr) return;
  std::fprintf(file, "%d", state);
  std::fclose(file);
}

CUresult Fault(const std::string& function, int pid) {
  std::string what;
  if (!Read("fault." + function + "." + std::to_string(pid), &what) &&
      !Read("fault." + function + ".by." + std::to_string(::getpid()), &what) &&
      !Read("fault." + function, &what)) {
    return CUDA_SUCCESS;
  }
  if (what == "wait") {
    while (Read("fault." + function, &what)) ::usleep(10000);
    return CUDA_SUCCESS;
  }
  if (what == "hang") {
    for (;;) ::pause();
  }
  if (what == "die") {
    ::kill(::getpid(), SIGUSR1);  // a signal that sanitizers do not report
    for (;;) ::pause();
  }
  return static_cast<CUresult>(std::atoi(what.c_str()));
}

#ifndef STASIS_FAKE_OLD_DRIVER
CUresult Move(const char* function, int pid, int from, int to) {
  std::string state;
  if (!Read(std::to_string(pid), &state)) return CUDA_ERROR_NOT_INITIALIZED;
  if (CUresult fault = Fault(function, pid); fault != CUDA_SUCCESS) return fault;
  if (std::atoi(state.c_str()) != from) return CUDA_ERROR_ILLEGAL_STATE;
  Write(pid, to);
  return CUDA_SUCCESS;
}
#endif

}  // namespace
}  // namespace stasis::cuda

#pragma GCC visibility push(default)
namespace stasis::cuda {
extern "C" {

CUresult cuInit(unsigned) {
  if (CUresult fault = Fault("cuInit", ::getpid()); fault != CUDA_SUCCESS) return fault;
  Write(::getpid(), 0);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
#ifdef STASIS_FAKE_OLD_DRIVER
  *version = 12040;
#else
  *version = 13000;
#endif
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  switch (error) {
#define STASIS_CU_RESULT(name, value, words) \
  case name:                                 \
    *text = #name;                           \
    return CUDA_SUCCESS;
#include "abi/cuda/driver_results.def"
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  switch (error) {
#define STASIS_CU_RESULT(name, value, words) \
  case name:                                 \
    *text = words;                           \
    return CUDA_SUCCESS;
#include "abi/cuda/driver_results.def"
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 2;
  return Fault("cuDeviceGetCount", 0);
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, 0xf0, sizeof uuid->bytes);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = size_t{8} << 30;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  *context = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = size_t{6} << 30;
  *total = size_t{8} << 30;
  return CUDA_SUCCESS;
}

#ifndef STASIS_FAKE_OLD_DRIVER
CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  std::string text;
  if (!Read(std::to_string(pid), &text)) return CUDA_ERROR_NOT_INITIALIZED;
  if (CUresult fault = Fault("GetState", pid); fault != CUDA_SUCCESS) return fault;
  *state = static_cast<CUprocessState>(std::atoi(text.c_str()));
  return CUDA_SUCCESS;
}
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  *tid = pid;
  return Fault("GetRestoreThreadId", pid);
}
CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs*) { return Move("Lock", pid, 0, 1); }
CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs*) {
  return Move("Checkpoint", pid, 1, 2);
}
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs*) {
  return Move("Restore", pid, 2, 1);
}
CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  return Move("Unlock", pid, 1, 0);
}
#endif

}  // extern "C"
}  // namespace stasis::cuda
#pragma GCC visibility pop
