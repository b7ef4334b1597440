// The target's side of the checkpoint API: one thread, which waits for requests on a pipe.
//
// CRIU may run this thread while every other one is stopped at an arbitrary point. It must
// therefore take no lock that another thread could hold, and not call malloc.
#pragma once

#include "base.h"

namespace softgpu {

// Creates the process header, the pipes and the thread. Called once, by cuInit. The driver of a
// process that uses HIP cannot checkpoint it: the usual address of its header has a page that no
// process can read, and only the stand-in of CRIU's plugin knows where the header is.
CUresult StartRestoreThread(bool hip);

// Ends the process by SIGSEGV, with a message, if it is checkpointed. NVIDIA's lock does not block
// `symbol`, and its driver may end a process that calls it between a checkpoint and its restore.
void EndIfCheckpointed(const char* symbol);

}  // namespace softgpu
