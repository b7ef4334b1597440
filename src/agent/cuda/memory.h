// The program's device memory that cuMemAlloc gave it, made of handles that can be exported.
//
// A region is one handle, mapped at one reserved range of addresses. A large request has a region
// of its own; smaller ones share slabs, since each handle costs the driver 0.15 ms each way at a
// suspend. Tiny ones stay with the driver, which packs them better, until there are many.
//
// Threads: the tables belong to whoever holds g_memory_mutex. While the gate is closed nobody
// changes them but the control thread, which needs the mutex only for what queries read.
#pragma once

#include "agent/cuda/devices.h"
#include "agent/descriptors.h"
#include "agent/futex.h"
#include "agent/vector.h"

namespace stasis::agent {

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kGranularity = 2 * kMiB;
inline constexpr uint64_t kLarge = 16 * kMiB;      // from here on: a handle of its own
inline constexpr uint64_t kSmallSlab = 32 * kMiB;  // while a device has little,
inline constexpr uint64_t kSlab = 64 * kMiB;       // and when it has more than
inline constexpr uint64_t kManyBytes = 1024 * kMiB;
inline constexpr uint64_t kTiny = kMiB;             // below: the driver's,
inline constexpr uint64_t kTinyBudget = 16 * kMiB;  // up to this much on a device

struct Block {
  uint64_t offset;
  uint64_t bytes;       // as asked for
  uint64_t id;          // unique among all allocations: CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool freed;           // of a pool: by the program, but work that was submitted may still use it
  uint64_t source = 0;  // of an import: its id where it comes from,
  uint32_t opens = 0;   // and how often the program has it open
};

struct Pool;
struct Import;

struct Region {
  uint64_t id;  // among those of this process
  uint64_t address;
  uint64_t bytes;
  CUdevice device;
  CUcontext context;  // whose end is its end
  Pool* pool;         // null: it serves cuMemAlloc; else it belongs to no context
  Import* import;     // another process's memory (ipc.h); null: it is this one's
  CUmemGenericAllocationHandle handle;
  KeptFd kept;  // of an imported handle, which cannot be exported
  bool slab;
  bool mapped;  // false between suspend and resume
  uint64_t used;
  uint64_t fits;  // no free piece is larger than this; it may be smaller
  Vector<Block> blocks;
};

extern Mutex g_memory_mutex;
extern Vector<Region*> g_regions;  // by address

struct Found {
  Region* region = nullptr;
  Block* block = nullptr;
};
// The allocation that holds the address, if it is not freed; the caller holds the mutex.
Found FindAllocation(CUdeviceptr address);

// A new region in the table; the caller holds the mutex.
CUresult MakeRegion(uint64_t bytes, CUdevice device, CUcontext context, Pool* pool, bool slab,
                    Region** out);
// A region that another process made, mapped here and in the table, without a block; the caller
// holds the mutex. `import` is the region's if this succeeds. The descriptor stays the caller's.
CUresult MakeImport(uint64_t bytes, CUdevice device, CUcontext context, Import* import, int fd,
                    Region** out);
// Maps the handle that it has at its address.
CUresult MapRegion(Region* region);
// Takes one out of the table and gives it back; the caller holds the mutex.
void DropRegion(Region* region);
// Access to it by its device and by whom the program lets.
CUresult GiveRegionAccess(const Region* region);
// Takes the first free piece that is large enough; the caller holds the mutex.
bool Carve(Region* region, uint64_t bytes, CUdeviceptr* out);
// Everything of a region that the driver has, and the region. It is in no table any more.
void GiveBack(Region* region);
// Memory that stays with the driver was freed.
void ForgetPlain(CUdeviceptr ptr);

// A context is gone, and with it its memory.
void FreeMemoryOf(CUcontext context);
// The program lets `peer` reach the memory of `device`: what is there and what will be.
void GrantPeer(CUdevice device, CUdevice peer);
// Frees what was freed during a capture. Whenever no capture is open.
void FreeDeferred();

uint64_t NextBufferId();
void ResetMemory();

}  // namespace stasis::agent
