// A client may copy the program's memory while the program runs (kExportRunning). Its descriptors
// keep that memory alive even after the program has freed it, so an allocation can fail for lack of
// GPU memory that the program no longer uses. Such an allocation waits here for the end of the
// copy (allocate.h).
//
// Threads: the control thread notes the copy; any thread may allocate.
#pragma once

#include "agent/cuda/real.h"

namespace stasis::agent {

void NoteCopyBegins();
// Call this when the client has closed its descriptors. Does nothing if no copy is in progress.
void NoteCopyEnds();
// Call this when the client has disconnected during a copy. The kernel frees the memory only after
// the client and its mover have ended, so allocations wait for a short time. Does nothing if no
// copy is in progress.
void NoteCopyIsLost();
void ResetHeldMemory();  // called in a forked child

// Returns the state of the copy. Read it before the allocation is tried, because the copy may end
// meanwhile.
uint32_t HeldMemory();
// Returns true if memory was held in state `before` and may be free now. Waits for the end of a
// copy.
bool AwaitHeldMemory(uint32_t before);

}  // namespace stasis::agent
