// Blocks of pools that the program has freed while submitted work may still use them, and the
// stream-ordered calls: allocations, frees, waits.
//
// Threads: the rules and the mutex of memory.h.
#pragma once

#include "agent/cuda/pools.h"

namespace stasis::agent {

// The caller of the following functions holds the mutex.

// Completes the frees whose events have completed. The events of one stream complete in order.
void ReapFreed();
// Takes a block that `stream` itself has freed. Returns false if none fits.
bool TakeFreed(Pool* pool, uint64_t bytes, uint64_t stream, bool small_only, CUdeviceptr* out);
// Completes all pending frees on the device. No submitted work may still use that memory.
void FinishFreesOn(CUdevice device);
// Calls LookAt (pools.h) for the pools that have pending frees.
void LookAtFreed();

// Drops the pending frees and the events of a context that has ended. The work of the context has
// ended too.
void ContextEnded(CUcontext context);

// The caller of the following functions must not hold the mutex.

// Waits for the oldest free on the device. Returns false if there is no such free, or after an
// error.
bool AwaitFreeOn(CUdevice device);
// Called before a context may end: waits for the frees in its streams.
void BeforeContextEnds(CUcontext context);

void ResetStreamOrder();

}  // namespace stasis::agent
