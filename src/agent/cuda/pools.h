// Stream-ordered allocation: cuMemAllocAsync and its kin, out of regions of ours.
//
// The program keeps the driver's own pools as handles: the driver answers for their flags and
// access, and serves what we do not. What a pool of ours holds is in regions that belong to it.
//   alloc   usable at once, which is more than is promised. Room is taken from what the same
//           stream has freed, from what is free, from a new region, and when there is no memory
//           from what another stream has freed: then the stream waits for that one.
//   free    the block stays taken until an event, recorded at the free, is reached.
//   sync    regions without blocks go back to the GPU, down to the pool's release threshold: from a
//           thread of ours, for unmapping may wait for other streams' work.
//
// Threads: as memory.h, under the same mutex.
#pragma once

#include "agent/cuda/memory.h"

namespace stasis::agent {

struct Pool {
  CUmemoryPool handle;  // null once the program has destroyed it
  CUdevice device;
  bool carried;  // false: the driver serves it
  uint64_t threshold;
  uint64_t used, used_high;
  uint64_t reserved, reserved_high;
  uint8_t access[wire::kMaxDevices];  // CUmemAccess_flags of other devices
};

// A block of a pool goes back by cuMemFree: nobody uses it any more. The caller holds the mutex.
void FreePoolBlock(Found found);
// For an allocation that found no memory: gives back what pools hold without need, and waits, once,
// for what is about to be freed. true: it is worth trying again. Not under the mutex.
bool FindMemoryInPools(CUdevice device);

// ---- for stream_order.cc; but for ReleaseSoon the caller holds the mutex

// null: none that we know, as one of another process.
Pool* PoolOf(CUmemoryPool handle);
// Room from what `stream` (cuStreamGetId; 0: unknown) has freed, from what is free, from a new
// region.
CUresult AllocateIn(Pool* pool, uint64_t bytes, uint64_t stream, CUdeviceptr* out);
void CountUse(Pool* pool, uint64_t bytes);
void EraseBlock(Region* region, Block* block);
// It may have too much after the program's next wait.
void LookAt(const Pool* pool);
// Some pool may hold more than its threshold: looked at after every wait of the program.
extern std::atomic<bool> g_pools_look;
// What pools have above their thresholds goes back to the GPU, by a thread of ours.
void ReleaseSoon();

// ---- for contexts.cc and carrier.cc

// The last context on the device has ended: nobody can use its memory any more.
void FreePoolMemoryOf(CUdevice device);

// While the gate is closed and everything is drained: what is free need not travel.
void ReleaseUnusedPoolMemory();

void ResetPools();

}  // namespace stasis::agent
