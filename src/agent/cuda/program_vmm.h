// The memory that a program manages itself with cuMemCreate and cuMemMap (expandable segments,
// sleep-mode allocators). It gets numbers in the place of handles, so that the handle behind one
// may change at a suspend; and its handles are made exportable, without the program seeing it.
//
// Threads: as memory.h, under the same mutex.
#pragma once

#include "agent/cuda/memory.h"

namespace stasis::agent {

struct ProgramHandle {
  uint64_t id;  // what the program holds
  CUmemGenericAllocationHandle real;
  uint64_t bytes;
  CUdevice device;
  CUmemAllocationHandleType asked;  // the program's own wish
  uint32_t references;              // the program's
  uint32_t mappings;
  KeptFd kept;
  bool present;
  bool shared;  // the program has exported it: another process may hold it
};

extern Vector<ProgramHandle*> g_program_handles;  // by id

CUresult UnmapAll(ProgramHandle* handle);
CUresult MapAll(ProgramHandle* handle);
// Its lowest address (0: not mapped), with the access that its device and the others have there.
uint64_t FirstMapping(ProgramHandle* handle, uint32_t* protection, uint64_t* peers);

void ResetProgramVmm();

}  // namespace stasis::agent
