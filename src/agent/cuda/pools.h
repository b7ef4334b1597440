// Stream-ordered allocation (cuMemAllocAsync and related calls) from the agent's regions.
//
// The program keeps the driver's pool handles: the driver answers queries about their flags and
// access, and serves the pools that the agent does not serve. The memory of a pool is in regions
// that belong to it.
//   alloc   usable at once, which is more than CUDA promises. The memory comes from a block that
//           the same stream has freed, from a free piece, or from a new region. If no GPU memory is
//           free, it comes from a block that another stream has freed, and the allocating stream
//           waits for that free.
//   free    the block stays taken until an event, recorded at the free, has completed.
//   sync    regions without blocks are freed, down to the pool's release threshold, by a thread of
//           the agent, since unmapping may wait for work of other streams.
//
// Threads: the rules and the mutex of memory.h.
#pragma once

#include "agent/cuda/memory.h"

namespace stasis::agent {

struct Pool {
  CUmemoryPool handle;  // null from the program's cuMemPoolDestroy on
  CUdevice device;
  bool carried;  // false if the driver serves it
  uint64_t threshold;
  uint64_t used, used_high;
  uint64_t reserved, reserved_high;
  uint32_t uses;       // the number of PoolUse objects, which keep the structure
  AccessFlags access;  // access of the other devices
};

// Frees a block of a pool that no work uses any more. The caller holds the mutex.
void FreePoolBlock(Found found);
// Called for an allocation that found no GPU memory: frees all unused memory of the pools, or else
// waits for one pending free. Returns true if the allocation should be tried again. The caller must
// not hold the mutex.
bool FindMemoryInPools(CUdevice device);

// The following is for stream_order.cc. The caller must not hold the mutex.

// Adds the pool to the agent's table if it is a device's default pool that is not there yet.
void LearnPool(CUmemoryPool handle);
// Keeps the structure of a pool alive while a PoolUse exists. `pool` is null if the agent does not
// carry the pool: it is unknown (another process's, for example) or served by the driver.
struct PoolUse {
  explicit PoolUse(CUmemoryPool handle);
  ~PoolUse();
  PoolUse(const PoolUse&) = delete;
  Pool* pool;
};
// Allocates from a block that `stream` (cuStreamGetId; 0: unknown) has freed, from a free piece, or
// from a new region.
CUresult AllocateIn(Pool* pool, uint64_t bytes, uint64_t stream, CUdeviceptr* out);

// The following is for stream_order.cc and memory.cc. The caller holds the mutex, except for
// ReleaseSoon.

void CountUse(Pool* pool, uint64_t bytes);
// Counts a new region of the pool.
void CountReserved(Pool* pool, uint64_t bytes);
void EraseBlock(Region* region, Block* block);
// Sets g_pools_look if the pool holds more than its threshold.
void LookAt(const Pool* pool);
// True if some pool may hold more than its threshold. Checked after every wait of the program.
extern std::atomic<bool> g_pools_look;
// Lets a thread of the agent free the memory that pools hold above their thresholds.
void ReleaseSoon();

// The following is for contexts.cc and carrier.cc.

// Called after a context on the device has ended: frees the pools' memory there if no context is
// left to use it. The caller must not hold the mutex.
void FreePoolMemoryOf(CUdevice device);

// Frees the pools' unused memory, which need not be saved. The gate must be closed and all work
// drained.
void ReleaseUnusedPoolMemory();

void ResetPools();

}  // namespace stasis::agent
