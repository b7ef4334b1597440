// Checks for free host memory.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::gpu_state {

// The driver saves GPU memory into the program's own host memory. Returns kResourceExhausted unless
// both the machine and the control groups of `pid` have room for `bytes` more.
Status CheckHostMemory(uint64_t bytes, process::HostPid pid);

}  // namespace stasis::gpu_state
