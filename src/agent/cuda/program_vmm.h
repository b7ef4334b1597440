// The memory that a program manages itself with cuMemCreate and cuMemMap (expandable segments,
// sleep-mode allocators). It gets numbers in the place of handles, so that the handle behind one
// may change at a suspend; and its handles are made exportable, without the program seeing it.
// Those that it exports and imports are in vmm_sharing.cc.
//
// Threads: as memory.h, under the same mutex.
#pragma once

#include "agent/cuda/memory.h"

namespace stasis::agent {

struct Import;

struct ProgramHandle {
  uint64_t id;  // what the program holds
  CUmemGenericAllocationHandle real;
  uint64_t bytes;
  CUdevice device;
  CUmemAllocationHandleType asked;  // the program's own wish
  uint32_t references;              // the program's
  uint32_t mappings;
  uint32_t users;  // other processes that have it open, or will have it again after a suspend
  KeptFd kept;
  bool present;
  bool exported;   // the program has given it out: other processes may ask our agent for it
  bool claimed;    // somebody has asked for it with what was given out
  Import* import;  // another process's memory (ipc.h); null: it is this one's
  bool shared;     // something that only the driver knows of uses it: a blocker is noted
};

extern Vector<ProgramHandle*> g_program_handles;  // by id

// Whether a handle is a number of ours. (The driver's are addresses.)
bool IsProgramId(uint64_t handle);
// null: none that there is.
ProgramHandle* FindProgramHandle(uint64_t id);
// A handle of the program's in the table, with one reference; null: no memory. Its `real` is the
// caller's until this has succeeded.
ProgramHandle* AddProgramHandle(CUmemGenericAllocationHandle real, uint64_t bytes, CUdevice device);
// Another process has it open no longer (GiveShared begins a use): memory lives as long as anybody
// has it. Of other ids than a handle's, nothing is done. Not under the mutex.
void EndUse(uint64_t id);
// One that was given out has gone, and nobody had asked for it: noted, and said once; the second
// not under the mutex.
void NoteUnclaimed();
void SayUnclaimed();
// Gives back what was kept for others and had its last use while the gate was closed. While it is
// closed, nothing is done.
void DestroyUnusedHandles();
// A use that only the driver knows of; `what` is the function's name.
void NoteShared(ProgramHandle* handle, const char* what);

CUresult UnmapAll(ProgramHandle* handle);
CUresult MapAll(ProgramHandle* handle);
// Its lowest address (0: not mapped), with the access that its device and the others have there.
uint64_t FirstMapping(ProgramHandle* handle, uint32_t* protection, uint64_t* peers);

void ResetProgramVmm();

}  // namespace stasis::agent
