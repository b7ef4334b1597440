// softgpu-hip-unpause PID: continues a HIP process that the stand-in for CRIU's plugin
// (hip_plugin.cc) has left stopped. It takes the place of the operation UNPAUSE of /dev/kfd. Does
// nothing for any other process.
#include <stdio.h>
#include <stdlib.h>

#include <initializer_list>

#include "checkpoint_client.h"

namespace {

using namespace stasis::cuda;  // NOLINT(google-build-using-namespace)
using softgpu::CheckpointOp;

constexpr uint32_t kLimitMs = 60000;

bool Runs(const softgpu::Target& target) {
  return target.header.state.load() == CU_PROCESS_STATE_RUNNING;
}

int Unpause(int pid) {
  softgpu::Target target;
  if (softgpu::FindTarget(pid, softgpu::kHipHeaderAddress, &target) != CUDA_SUCCESS) return 0;
  if (Runs(target)) return 0;
  for (CheckpointOp op : {CheckpointOp::kRestore, CheckpointOp::kUnlock}) {
    softgpu::CheckpointRequest request{};
    request.op = op;
    request.timeout_ms = kLimitMs;
    const CUresult r = softgpu::AskTarget(target, request);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_ILLEGAL_STATE) return 1;
  }
  if (softgpu::FindTarget(pid, softgpu::kHipHeaderAddress, &target) != CUDA_SUCCESS) return 0;
  return Runs(target) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: softgpu-hip-unpause PID\n");
    return 2;
  }
  return Unpause(atoi(argv[1]));
}
