// Faults on demand: any call can be told to fail, hang or die.
//
//   SPEC    = RULE[,RULE…]
//   RULE    = [target:]SYMBOL[:N]=ACTION     the N-th such call from now on (1 is the next), or
//   each one SYMBOL  = an exported name without _ptsz/_ptds, or * ACTION  = fail | fail(CURESULT) |
//   hang | hang(MILLISECONDS) | die
//
// From SOFTGPU_FAULT at the first call, and from the files fault and fault.PID in SOFTGPU_DIR
// whenever they change. A file's rules take the place of all earlier ones; an empty file ends them.
// Rules with `target:` are for the target's side of a checkpoint call and count there.
#pragma once

#include "base.h"

namespace softgpu::fault {

// CUDA_SUCCESS, or what the call shall answer. Does not return from `die` and from `hang`.
CUresult Check(const char* symbol, bool target = false);

// Where the files are; before that only the environment counts.
void SetDirectory(const char* directory);

}  // namespace softgpu::fault
