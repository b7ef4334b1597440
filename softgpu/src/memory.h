// Device memory: files on a device's tmpfs, and their mappings.
//
// Requires driver().mutex. The restore thread reads both tables without it, while the gate is
// closed and no work runs (checkpoint_target.cc), and changes only fields marked (R).
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
  kPlain,    // cuMemAlloc and related functions; mapped at its only address
  kHandle,   // cuMemCreate; mapped at a hidden address and by cuMemMap
  kControl,  // the cost of a context
  kModule,   // globals of an image, at their addresses in the loaded image
};

// Physical memory of one device. This process keeps no descriptor of its file. The home mapping
// keeps the memory alive, and so does the broker if another process may ask for it.
struct Memory {
  MemoryKind kind;
  int ordinal;
  uint64_t bytes;             // size of the file in whole pages
  uint64_t home = 0;          // address of the read-write mapping (R: unmapped while checkpointed)
  uint64_t reserved = 0;      // size of its address reservation; 0 for kModule
  bool keep = false;          // the broker keeps the file
  KeepTicket ticket;          // (R)
  void* backup = nullptr;     // (R) the content while checkpointed
  bool managed = false;       // makes a checkpoint fail
  bool imported_ipc = false;  // makes a restore fail
  bool imported_handle = false;  // makes a restore fail; cannot be exported
  uint32_t references = 1;       // of a handle: one for the program and one for each mapping
  uint32_t handle_references = 0;
  CUmemAllocationProp properties{};
};

enum class RangeKind { kDevice, kManaged, kPool, kGlobal, kIpc, kMapped, kHost, kRegistered };

// An address range that a pointer may point into.
struct Range {
  RangeKind kind;
  uint64_t address;
  uint64_t bytes;  // size as requested
  Memory* memory = nullptr;
  Context* context = nullptr;
  Pool* pool = nullptr;
  bool freed = false;  // the stream-ordered free was submitted but has not run yet
  // For kMapped: the devices with read and with write access (cuMemSetAccess; bit n is device n),
  // and the protection of the mapping, which is the most permissive access of any device.
  uint32_t readers = 0, writers = 0;
  int protection = 0;
  uint64_t buffer_id = 0;
  unsigned host_flags = 0;
  bool sync_memops = false;
};

class MemoryTable {
 public:
  // Creates memory with garbage in every 64 KiB (except control memory) and maps it at its home.
  // For kModule, maps it over `at` and keeps the content there.
  CUresult Create(MemoryKind kind, int ordinal, uint64_t bytes, bool keep, Memory** out,
                  uint64_t at = 0);
  // Adopts memory of another process, given its file.
  CUresult Adopt(MemoryKind kind, int ordinal, const Fd& file, uint64_t bytes, Memory** out);
  void Destroy(Memory* memory);

  // Maps the same memory a second time, without access.
  CUresult MapAlias(Memory* memory, uint64_t address);
  void UnmapAlias(const Range& range);

  Range* AddRange(Range range);
  void RemoveRange(uint64_t address) { ranges_.erase(address); }
  // Returns the range that contains `address`, or null.
  Range* Find(uint64_t address);
  // Returns the range that starts at the address, or null.
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

// Creates a fully allocated file of `bytes` on the device. Returns CUDA_ERROR_OUT_OF_MEMORY if it
// does not fit. Allocates no heap memory, for the restore thread.
CUresult MakeDeviceFile(int ordinal, uint64_t bytes, Fd* file);
// Maps the file at exactly this address; with `replace`, over existing mappings. The restore thread
// may call it too.
bool MapDeviceFile(const Fd& file, uint64_t at, uint64_t bytes, bool replace);
// Returns the device that the file's path names, or -1 if the file is not a device file.
int DeviceOfFile(int fd);

}  // namespace softgpu
