// What a process that uses HIP needs in place of cuInit and contexts: the runtime starts by itself,
// and every thread has a current device.
#pragma once

namespace stasis::agent {

// Returns true if the process uses HIP, so that the driver's functions are HIP's
// (abi/hip/as_driver.h). Valid after Bind() (cuda/real.h). A process uses one of CUDA and HIP.
bool IsHip();

// Records the calling thread's device, so that a suspend waits for the work on it, and makes the
// control socket. May be called at any time.
void NoteCurrentDevice();

// Points the hooks of HIP's functions at the functions of the library itself, in a process that
// uses CUDA (or a version of HIP that the agent does not know). g_real has them.
void PassHipThrough();

// Adds HIP's hooks to the function table (cuda/hooks.h, CompleteFunctionTable).
void CompleteHipTable();

}  // namespace stasis::agent
