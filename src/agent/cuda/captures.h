// Open stream captures, and the program's callbacks on driver threads.
#pragma once

#include "agent/cuda/real.h"

namespace stasis::agent {

// How many streams are being captured. The gate does not close over one.
uint32_t CapturesOpen();

// During a capture, some allocations are refused and spoil it: by whom and in which mode it was
// begun decides. The driver is asked with a request of the same kind, and its answer is ours.
CUresult AskWhetherCaptureAllows();

void ResetCaptures();

}  // namespace stasis::agent
