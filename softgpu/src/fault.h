// Fault injection: any call can be made to fail, hang, or end the process.
//
//   SPEC    = RULE[,RULE...]
//   RULE    = [target:]SYMBOL[:N]=ACTION     for the N-th call from now on (1 is the next), or
//                                            for each call
//   SYMBOL  = an exported name without _ptsz/_ptds/_spt, or *. The name of a HIP function
//             that a driver function serves stands for the driver function
//   ACTION  = fail | fail(CURESULT) | hang | hang(MILLISECONDS) | hold(N) | die
//           | late(MILLISECONDS)
//
// `hold(N)`: the call creates the file held.N in SOFTGPU_DIR and waits until the file hold.N is
// gone.
//
// `late`: the call returns at once, and its work starts MILLISECONDS later, in the order of its
// stream. A copy from pageable memory to a device then behaves as NVIDIA documents it, even without
// a stream: it returns when the source may be changed, not when the data has arrived.
//
// Rules come from SOFTGPU_FAULT at the first call, and from the files fault and fault.PID in
// SOFTGPU_DIR whenever these change. Rules of a file replace all earlier ones; an empty file clears
// them. Rules with `target:` apply to, and count on, the target's side of a checkpoint call.
#pragma once

#include "base.h"

namespace softgpu::fault {

// Returns CUDA_SUCCESS or the result that the call must return. Does not return from `die` and
// `hang`.
CUresult Check(const char* symbol, bool target = false);

// Returns the delay in milliseconds of the next work that the calling thread submits, and clears
// it.
int TakeLate();
int PendingLate();

// Sets the directory of the files. Until then only the rules of the environment apply.
void SetDirectory(const char* directory);

}  // namespace softgpu::fault
