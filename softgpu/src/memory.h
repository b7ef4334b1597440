// Device memory: files in a device's tmpfs, and what is mapped where.
//
// Threads: whoever holds driver().mutex. The restore thread walks both tables without it, while the
// gate is closed and nothing runs (checkpoint_target.cc), and changes only what is marked with (R).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "address_space.h"
#include "base.h"
#include "broker_client.h"

namespace softgpu {

struct Context;
struct Pool;

enum class MemoryKind {
  kPlain,    // cuMemAlloc and its kin; mapped at its only address
  kHandle,   // cuMemCreate; mapped at a hidden address, and wherever cuMemMap says
  kControl,  // what a context costs
  kModule,   // an image's globals, at their place within the loaded image
};

// Physical memory of one device. Its file has no descriptor here: the home mapping holds it, and
// the broker where another process may ask for it.
struct Memory {
  MemoryKind kind;
  int ordinal;
  uint64_t bytes;             // of the file: whole pages
  uint64_t home = 0;          // mapped here, readable and writable (R: unmapped while checkpointed)
  uint64_t reserved = 0;      // of the address space, 0 for kModule
  bool keep = false;          // the broker keeps the file
  KeepTicket ticket;          // (R)
  void* backup = nullptr;     // (R) the content, while checkpointed
  bool managed = false;       // stands in a checkpoint's way
  bool imported_ipc = false;  // lets a restore fail
  bool imported_handle = false;  // lets a restore fail, and cannot be exported
  uint32_t references = 1;       // of a handle: the program's and each mapping's
  uint32_t handle_references = 0;
  CUmemAllocationProp properties{};
};

enum class RangeKind { kDevice, kManaged, kPool, kGlobal, kIpc, kMapped, kHost, kRegistered };

// What a pointer may point into.
struct Range {
  RangeKind kind;
  uint64_t address;
  uint64_t bytes;  // as asked for
  Memory* memory = nullptr;
  Context* context = nullptr;
  Pool* pool = nullptr;
  bool freed = false;  // in stream order, not yet come to pass
  // Of kMapped: what cuMemSetAccess gave, a bit for each ordinal, and the most that anybody has.
  uint32_t readers = 0, writers = 0;
  int protection = 0;
  uint64_t buffer_id = 0;
  unsigned host_flags = 0;
  bool sync_memops = false;
};

class MemoryTable {
 public:
  // New memory, filled with garbage (control memory is not) and mapped at its home.
  // kModule: over `at`, keeping what is there.
  CUresult Create(MemoryKind kind, int ordinal, uint64_t bytes, bool keep, Memory** out,
                  uint64_t at = 0);
  // Memory of another process, from its file.
  CUresult Adopt(MemoryKind kind, int ordinal, const Fd& file, uint64_t bytes, Memory** out);
  void Destroy(Memory* memory);

  // A second mapping of the same memory, without access yet.
  CUresult MapAlias(Memory* memory, uint64_t address);
  void UnmapAlias(const Range& range);

  Range* AddRange(Range range);
  void RemoveRange(uint64_t address) { ranges_.erase(address); }
  // The range that holds `address`, or none.
  Range* Find(uint64_t address);
  // The range that begins there.
  Range* At(uint64_t address);

  AddressSpace& addresses() { return addresses_; }
  std::map<uint64_t, Range>& ranges() { return ranges_; }
  const std::map<Memory*, std::unique_ptr<Memory>>& memories() const { return memories_; }
  Memory* FindMemory(uint64_t handle) const;

 private:
  AddressSpace addresses_;
  std::map<uint64_t, Range> ranges_;
  std::map<Memory*, std::unique_ptr<Memory>> memories_;
  uint64_t next_buffer_id_ = 1;
};

// A file of `bytes` on the device, all of it allocated; CUDA_ERROR_OUT_OF_MEMORY when it does not
// fit. Does not allocate on our side: also for the restore thread.
CUresult MakeDeviceFile(int ordinal, uint64_t bytes, Fd* file);
// Maps it there and nowhere else. `replace`: over what is there. Also for the restore thread.
bool MapDeviceFile(const Fd& file, uint64_t at, uint64_t bytes, bool replace);
// Which device's memory a file is, by its path; -1 when it is none.
int DeviceOfFile(int fd);

}  // namespace softgpu
