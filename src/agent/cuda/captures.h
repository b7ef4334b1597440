// Open stream captures, and the program's callbacks on driver threads.
#pragma once

#include "agent/cuda/real.h"

namespace stasis::agent {

// How many streams are being captured. The gate does not close over one.
uint32_t CapturesOpen();

// During a capture, some allocations are refused and spoil it: by whom and in which mode it was
// begun decides. The driver is asked with a request of the same kind, and its answer is ours.
CUresult AskWhetherCaptureAllows();

// While another thread captures, what we call could spoil its capture, which the program's own call
// would not. In this mode it does not.
struct Relaxed {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  Relaxed() { real::cuThreadExchangeStreamCaptureMode(&mode); }
  ~Relaxed() { real::cuThreadExchangeStreamCaptureMode(&mode); }
  Relaxed(const Relaxed&) = delete;
};

void ResetCaptures();

}  // namespace stasis::agent
