// Blocks of pools that the program has freed behind work that may still use them, and what it calls
// in the order of its streams: allocations, frees, waits.
//
// Threads: as memory.h, under the same mutex.
#pragma once

#include "agent/cuda/pools.h"

namespace stasis::agent {

// ---- for pools.cc; the caller holds the mutex

// Takes note of the frees that have come to pass. Within a stream they do so in their order.
void ReapFreed();
// A block that `stream` itself has freed. false: none fits.
bool TakeFreed(Pool* pool, uint64_t bytes, uint64_t stream, bool small_only, CUdeviceptr* out);
// The event of the oldest free on the device; null: none.
CUevent FirstFreeOn(CUdevice device);
// Nobody uses memory of the device any more.
void FinishFreesOn(CUdevice device);
// Looks (pools.h) at the pools that frees will give something back to.
void LookAtFreed();

// ---- for contexts.cc; not under the mutex

// A context may end now: its streams' frees are waited for. And: it has ended, with all its work.
void BeforeContextEnds(CUcontext context);
void ContextEnded(CUcontext context);

void ResetStreamOrder();

}  // namespace stasis::agent
