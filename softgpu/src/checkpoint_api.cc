// The checkpoint API for other processes. checkpoint_client.h finds the target and asks it.

#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "api.h"
#include "checkpoint_client.h"

namespace softgpu {
namespace {

// Returns true if the target's thread is stopped by a signal or by its tracer.
bool IsStopped(const Target& target) {
  char path[64], text[4096] = {};
  snprintf(path, sizeof(path), "/proc/%d/task/%d/status", target.pid, ThreadIdOf(target));
  Fd file(open(path, O_RDONLY | O_CLOEXEC));
  return file.valid() && read(file.get(), text, sizeof(text) - 1) > 0 &&
         (strstr(text, "\nState:\tT") != nullptr || strstr(text, "\nState:\tt") != nullptr);
}

CUresult Find(int pid, Target* target) { return FindTarget(pid, kHeaderAddress, target); }

CUresult Ask(int pid, const CheckpointRequest& request) {
  Target target;
  CUresult r = Find(pid, &target);
  return r == CUDA_SUCCESS ? AskTarget(target, request) : r;
}

template <class T>
bool AllZero(const T& reserved) {
  const char* bytes = reinterpret_cast<const char*>(&reserved);
  return std::all_of(bytes, bytes + sizeof(reserved), [](char c) { return c == 0; });
}

CheckpointRequest Request(CheckpointOp op) {
  CheckpointRequest request{};
  request.op = op;
  return request;
}

}  // namespace

namespace api {

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  Target target;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = Find(pid, &target); r != CUDA_SUCCESS) return r;
  // With driver 580 the target itself answers, without a time limit, so the call blocks while the
  // target is stopped.
  while (IsStopped(target)) usleep(1000);
  *state = CUprocessState(target.header.state.load());
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  Target target;
  if (tid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = Find(pid, &target); r != CUDA_SUCCESS) return r;
  const int found = ThreadIdOf(target);
  if (found < 0) return CUDA_ERROR_INVALID_VALUE;
  if (found == 0) return CUDA_ERROR_NOT_INITIALIZED;
  *tid = found;
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  CheckpointRequest request = Request(CheckpointOp::kLock);
  if (args != nullptr) {
    if (args->reserved0 != 0 || !AllZero(args->reserved1)) return CUDA_ERROR_INVALID_VALUE;
    request.timeout_ms = args->timeoutMs;
  }
  return Ask(pid, request);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  if (args != nullptr && !AllZero(*args)) return CUDA_ERROR_INVALID_VALUE;
  return Ask(pid, Request(CheckpointOp::kCheckpoint));
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  CheckpointRequest request = Request(CheckpointOp::kRestore);
  if (args != nullptr) {
    if (!AllZero(args->reserved) || args->reserved1 != 0 || args->gpuPairsCount > kMaxDevices ||
        (args->gpuPairsCount != 0 && args->gpuPairs == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    request.pair_count = args->gpuPairsCount;
    std::copy_n(args->gpuPairs, args->gpuPairsCount, request.pairs);
  }
  return Ask(pid, request);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  if (args != nullptr && !AllZero(*args)) return CUDA_ERROR_INVALID_VALUE;
  return Ask(pid, Request(CheckpointOp::kUnlock));
}

}  // namespace api
}  // namespace softgpu
