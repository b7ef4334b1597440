// The target's side of the checkpoint API: one thread, which waits for requests on a pipe.
//
// CRIU may let this thread run while every other one is stopped, wherever it stood. So it takes no
// lock that another thread could hold, and no memory from malloc.
#pragma once

#include "base.h"

namespace softgpu {

// Makes the process header, the pipes and the thread. Once, by cuInit.
CUresult StartRestoreThread();

// By SIGSEGV, with a word about it: as NVIDIA's driver may when `symbol`, which no lock holds up,
// is called between a checkpoint and its restore.
void EndIfCheckpointed(const char* symbol);

}  // namespace softgpu
