// Room for a program's GPU memory in that of the machine.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::gpu_state {

// The driver saves GPU memory into the program's own RAM: is there room for `bytes` more?
// kResourceExhausted if not.
// Both of the machine and of the control groups that `pid` is in.
Status CheckHostMemory(uint64_t bytes, process::HostPid pid);

}  // namespace stasis::gpu_state
