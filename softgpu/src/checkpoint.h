// The target's side of the checkpoint API: one thread, which waits for requests on a pipe.
//
// CRIU may run this thread while every other one is stopped at an arbitrary point. It must
// therefore take no lock that another thread could hold, and not call malloc.
#pragma once

#include "base.h"

namespace softgpu {

// Creates the process header, the pipes and the thread. Called once, by cuInit.
CUresult StartRestoreThread();

// For a process that cannot be checkpointed. Occupies the address of the header with a page that no
// process can read, so that a second copy of this library in the process fails.
CUresult RefuseCheckpoints();

// Ends the process by SIGSEGV, with a message, if it is checkpointed. NVIDIA's lock does not block
// `symbol`, and its driver may end a process that calls it between a checkpoint and its restore.
void EndIfCheckpointed(const char* symbol);

}  // namespace softgpu
