// The memory that a program manages itself with cuMemCreate and cuMemMap (expandable segments,
// sleep-mode allocators). The program gets numbers instead of handles, so that the handle behind a
// number may change at a suspend. The handles are made exportable; the program does not see that.
// Exports and imports of them are in vmm_sharing.cc.
//
// Threads: the rules and the mutex of memory.h.
#pragma once

#include "agent/cuda/memory.h"

namespace stasis::agent {

struct Import;

struct ProgramHandle {
  uint64_t id;  // the number that the program holds
  CUmemGenericAllocationHandle real;
  uint64_t bytes;
  CUdevice device;
  CUmemAllocationHandleType asked;  // the handle types that the program requested
  uint32_t references;              // the program's
  uint32_t mappings;
  uint32_t users;  // other processes that have it open, or will have it again after a suspend
  KeptFd kept;
  bool present;
  bool exported;        // the program has exported it: other processes may ask the agent for it
  bool claimed;         // a process has asked for it with the exported file
  Import* import;       // null if the memory is this process's own (ipc.h)
  bool shared;          // used in a way that the agent cannot track; a blocker is noted
  ProgramHandle* next;  // in Leaving
};

extern Vector<ProgramHandle*> g_program_handles;  // sorted by id

// Returns true if the handle is one of the agent's numbers. (The driver's handles are addresses.)
bool IsProgramId(uint64_t handle);
// Returns the handle, or null if there is none. The caller holds the mutex.
ProgramHandle* FindProgramHandle(uint64_t id);
// Adds a handle with one reference to the table and returns it, or null if host memory for the
// entry cannot be allocated. `real` stays the caller's if this fails. The caller holds the mutex.
ProgramHandle* AddProgramHandle(CUmemGenericAllocationHandle real, uint64_t bytes, CUdevice device);
// Ends a use by another process (GiveShared begins one). The memory lives until its last use ends.
// Does nothing if no handle has this id. The caller must not hold the mutex.
void EndUse(uint64_t id);
// Notes that an exported handle is gone and no process ever asked for it. SayUnclaimed prints this
// to stderr, once; its caller must not hold the mutex.
void NoteUnclaimed();
void SayUnclaimed();
// Frees handles that were kept for other processes and whose last use ended while the gate was
// closed. Does nothing while the gate is closed.
void DestroyUnusedHandles();
// Notes a use that the agent cannot track; `what` is the function's name.
void NoteShared(ProgramHandle* handle, const char* what);

// Frees a handle that is in no table any more, and the driver's memory behind it. The caller must
// not hold the mutex.
void GiveBackHandle(ProgramHandle* handle);

CUresult UnmapAll(ProgramHandle* handle);
CUresult MapAll(ProgramHandle* handle);
// Returns the lowest address at which the handle is mapped, and in `protection` and `peers` the
// access of the handle's device and of the other devices to that mapping. Returns 0 if the handle
// is not mapped.
uint64_t FirstMapping(ProgramHandle* handle, uint32_t* protection, uint64_t* peers);

void ResetProgramVmm();

}  // namespace stasis::agent
