// The caller's side of the checkpoint API, for the API itself and for the stand-in of CRIU's plugin
// (criu/).
#pragma once

#include "process_header.h"

namespace softgpu {

struct Target {
  int pid = 0;  // in this process's namespace
  ProcessHeader header;

  // The header as bytes, because atomics cannot be copied.
  char* bytes() { return reinterpret_cast<char*>(&header); }
};

// Finds the process that has its header at this address. Returns CUDA_ERROR_NOT_INITIALIZED if the
// process has none there.
CUresult FindTarget(int pid, uint64_t header_address, Target* target);
// Sends a request and waits for its answer.
CUresult AskTarget(const Target& target, CheckpointRequest request);
// Returns the id of the restore thread in this process's namespace, 0 if the target has none, or -1
// if its threads cannot be read.
int ThreadIdOf(const Target& target);

}  // namespace softgpu
