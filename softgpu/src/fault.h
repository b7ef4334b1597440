// Faults on demand: any call can be told to fail, hang or die.
//
//   SPEC    = RULE[,RULE...]
//   RULE    = [target:]SYMBOL[:N]=ACTION     the N-th such call from now on (1 is the next), or
//   each
//                                            one
//   SYMBOL  = an exported name without _ptsz/_ptds, or *
//   ACTION  = fail | fail(CURESULT) | hang | hang(MILLISECONDS) | die | late(MILLISECONDS)
//
// `late`: the call answers at once, and what it submits begins so much later, in the order of its
// stream. A copy from pageable memory to a device is then as NVIDIA documents it, also one that
// names no stream: it answers when the memory may be changed, not when the copy has arrived.
//
// From SOFTGPU_FAULT at the first call, and from the files fault and fault.PID in SOFTGPU_DIR
// whenever they change. A file's rules take the place of all earlier ones; an empty file ends them.
// Rules with `target:` are for the target's side of a checkpoint call and count there.
#pragma once

#include "base.h"

namespace softgpu::fault {

// CUDA_SUCCESS, or what the call shall answer. Does not return from `die` and from `hang`.
CUresult Check(const char* symbol, bool target = false);

// What the work that the calling thread submits next is late by, in milliseconds; once.
int TakeLate();
int PendingLate();

// Where the files are; before that only the environment counts.
void SetDirectory(const char* directory);

}  // namespace softgpu::fault
