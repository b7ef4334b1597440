// Checks for free host memory.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "dataplane/arena_place.h"
#include "process/proc.h"

namespace stasis::gpu_state {

// The driver saves GPU memory into the program's own host memory. Returns kResourceExhausted unless
// both the machine and the control groups of `pid` have room for `bytes` more.
Status CheckHostMemory(uint64_t bytes, process::HostPid pid);
// Like CheckHostMemory, with one need for the machine and one for the control groups.
Status CheckHostMemory(const dataplane::MemoryRoom& needed, process::HostPid pid);

// Returns true if the tightest limit on the memory of both processes is the same.
bool ShareMemoryLimit(process::HostPid one, process::HostPid other);

}  // namespace stasis::gpu_state
