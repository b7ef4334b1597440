// What every hook that allocates GPU memory does when there is none: it waits for the end of a copy
// of the running program (held_memory.h), and for room that a watcher makes (room.h).
//
// Allocations inside the driver (a module, a graph, an array, local memory of a kernel) do not
// wait, nor does managed memory, which needs no GPU memory when it is allocated.
#pragma once

#include "agent/cuda/held_memory.h"
#include "agent/room.h"

namespace stasis::agent {

// What an allocation needs. `allocate` of AllocateOrWait may set it.
struct Need {
  static constexpr CUdevice kNone = -1;     // room on no device would help: do not wait for any
  static constexpr CUdevice kCurrent = -2;  // the current context's device

  uint64_t bytes = 0;
  CUdevice device = kNone;
};

// Returns false if the allocation would use memory that a watcher wants to be left free.
bool LeavesSpare(const Need& need);
// Returns true if the allocation should be tried again, as Wait::Await.
bool AwaitRoom(const Need& need, room::Wait* wait, uint32_t frees);

// Calls `allocate`, which returns a CUresult, until it finds memory or there is nothing to wait
// for. The program may be suspended and resumed between two calls. The caller must hold no mutex.
template <class F>
CUresult AllocateOrWait(const Need& need, F allocate) {
  room::Wait wait;
  for (;;) {
    const uint32_t held = HeldMemory();
    const uint32_t frees = room::Frees();
    const bool tried = wait.is_last() || LeavesSpare(need);
    const CUresult r = tried ? allocate() : CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_ERROR_OUT_OF_MEMORY) return r;
    if (AwaitHeldMemory(held) || AwaitRoom(need, &wait, frees)) continue;
    return tried ? r : allocate();
  }
}

}  // namespace stasis::agent
