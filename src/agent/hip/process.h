// The equivalents of cuInit and contexts in a process that uses HIP. There the runtime starts by
// itself, and every thread has a current device.
#pragma once

namespace stasis::agent {

// Returns true if the process uses HIP, so that the driver's functions are HIP's
// (abi/hip/as_driver.h). Valid after Bind() (cuda/real.h). A process uses either CUDA or HIP, not
// both.
bool IsHip();

// Records the calling thread's device, so that a suspend waits for the work on it, and makes the
// control socket. May be called at any time.
void NoteCurrentDevice();

// Makes the hooks of HIP's functions jump to the library's own functions, which are in g_real.
// Called in a process that uses CUDA, or a version of HIP that the agent does not know.
void PassHipThrough();

// Adds HIP's hooks to the function table (cuda/hooks.h, CompleteFunctionTable).
void CompleteHipTable();

}  // namespace stasis::agent
