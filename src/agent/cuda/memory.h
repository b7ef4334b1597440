// The program's cuMemAlloc memory, made of handles that can be exported.
//
// A region is one handle, mapped at one reserved range of addresses. A large request gets its own
// region. Smaller ones share slabs, because each handle costs the driver 0.15 ms at a suspend and
// again at a resume. Tiny requests stay with the driver, which packs them better, up to a budget.
//
// Threads: g_memory_mutex guards the tables. It is never held over a driver call that allocates,
// maps, unmaps or frees, so the control thread, pointer queries and forks do not wait for one.
//   A new region is made first and entered in the table afterwards (GrowBy). A region is taken out
//   of the table first and freed afterwards (Leaving).
//   Both happen inside the gate. So while the gate is closed no region is half made, the table
//   holds all regions, and only the control thread changes it. While the gate is open, the figures
//   in HelloReply lack regions that are being made.
#pragma once

#include "agent/cuda/devices.h"
#include "agent/cuda/driver_memory.h"
#include "agent/descriptors.h"
#include "agent/futex.h"
#include "agent/vector.h"

namespace stasis::agent {

inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kGranularity = 2 * kMiB;
inline constexpr uint64_t kLarge = 16 * kMiB;  // requests from this size on get their own handle
inline constexpr uint64_t kSmallSlab = 32 * kMiB;  // a slab on a device with few regions
inline constexpr uint64_t kSlab = 64 * kMiB;       // a slab on a device with kManyBytes of regions
inline constexpr uint64_t kManyBytes = 1024 * kMiB;
inline constexpr uint64_t kTiny = kMiB;             // smaller requests stay with the driver
inline constexpr uint64_t kTinyBudget = 16 * kMiB;  // limit for their sum on each device

struct Block {
  uint64_t offset;
  uint64_t bytes;       // as requested
  uint64_t id;          // unique among all allocations: CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool freed;           // in a pool: freed by the program, but submitted work may still use it
  uint64_t source = 0;  // in an import: the block's id in the owner's process
  uint32_t opens = 0;   // in an import: how often the program has opened it
};

struct Pool;
struct Import;
struct ProgramHandle;

struct Region {
  uint64_t id;  // unique in this process
  uint64_t address;
  uint64_t bytes;
  CUdevice device;
  CUcontext context;  // the region is freed when it ends
  Pool* pool;         // null if it serves cuMemAlloc; a pool's region belongs to no context
  Import* import;     // null unless the memory is another process's (ipc.h)
  CUmemGenericAllocationHandle handle;
  KeptFd kept;  // the descriptor of an imported handle, which cannot be exported
  bool slab;
  bool mapped;  // false between suspend and resume
  uint64_t used;
  uint64_t fits;  // upper bound of the largest free piece
  Vector<Block> blocks;
  Region* next;  // in Leaving
};

// Held over driver calls while regions are made and while access to them changes, so that a new
// region is reachable by all devices that may reach it. Taken before g_memory_mutex, and never held
// over a free or a wait.
extern Mutex g_growth_mutex;
extern Mutex g_memory_mutex;
extern Vector<Region*> g_regions;  // sorted by address

struct Found {
  Region* region = nullptr;
  Block* block = nullptr;
};
// Returns the allocation at the address if it is not freed. The caller holds the mutex.
Found FindAllocation(CUdeviceptr address);

// Regions and handles that were taken out of the tables. The destructor returns them to the driver,
// which must happen without g_memory_mutex: declare this object before the Lock, so that it is
// destroyed after the unlock.
class Leaving {
 public:
  Leaving() = default;
  ~Leaving();
  Leaving(const Leaving&) = delete;
  void Add(Region* region);
  void Add(ProgramHandle* handle);
  bool empty() const { return regions_ == nullptr && handles_ == nullptr; }

 private:
  Region* regions_ = nullptr;
  ProgramHandle* handles_ = nullptr;
};

// Returns the size of a new slab. The caller holds the mutex.
uint64_t SlabBytes(CUdevice device);
// Makes a region of `region_bytes` and takes `bytes` of it. The caller holds g_growth_mutex and not
// g_memory_mutex.
CUresult GrowBy(uint64_t region_bytes, CUdevice device, CUcontext context, Pool* pool, bool slab,
                uint64_t bytes, CUdeviceptr* out);
// Maps another process's memory as a region without blocks, which is in no table yet. On success
// the region owns `import`. The caller still owns the descriptor. The caller holds the same mutexes
// as for GrowBy.
CUresult MakeImport(uint64_t bytes, CUdevice device, CUcontext context, Import* import, int fd,
                    Region** out);
// Adds a region to the table. Returns false if host memory for the entry cannot be allocated. The
// caller holds the mutex.
bool EnterRegion(Region* region);
// Maps the region's handle at the region's address.
CUresult MapRegion(Region* region);
// Takes a region out of the table. The caller holds the mutex.
void DropRegion(Region* region, Leaving* leaving);
// Gives access to the region's device, and to the devices that the program allows.
CUresult GiveRegionAccess(const Region* region);
// Takes the first free piece that is large enough. Returns false if no piece is large enough, or if
// there is no host memory to record it. The caller holds the mutex.
bool Carve(Region* region, uint64_t bytes, CUdeviceptr* out);
// Subtracts `bytes` from the device's tiny allocations. The caller must not hold the mutex.
void UncountTiny(CUdevice device, uint64_t bytes);
// Frees memory that stays with the driver: `free` calls the driver. The caller must not hold the
// mutex.
template <class F>
CUresult FreePlain(CUdeviceptr ptr, F free) {
  DriverPiece freed{};
  const CUresult r = FreeCounted(ptr, free, &freed);
  if (freed.kind == DriverKind::kTiny) UncountTiny(freed.device, freed.bytes);
  return r;
}

// Drops the memory of a context that has ended. The caller holds the mutex.
void DropMemoryOf(CUcontext context, Leaving* leaving);
// Lets `peer` reach all present and future memory of `device`.
void GrantPeer(CUdevice device, CUdevice peer);
// Frees the memory that the program freed during a capture. No capture may be open.
void FreeDeferred();

uint64_t NextBufferId();
void ResetMemory();

}  // namespace stasis::agent
