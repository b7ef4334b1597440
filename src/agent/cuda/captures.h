// Tracks open stream captures, and the program's callbacks that run on driver threads.
#pragma once

#include "agent/cuda/real.h"

namespace stasis::agent {

// Returns how many streams are being captured. The gate does not close during a capture.
uint32_t CapturesOpen();

// During a capture, the driver rejects some allocations, depending on the capturing thread and the
// mode, and a rejected allocation invalidates the capture. To behave the same, this function asks
// the driver for a small allocation and returns the result.
CUresult AskWhetherCaptureAllows();

// While a Relaxed exists, the agent's driver calls in this thread do not invalidate a capture of
// another thread. The program's own call would not have invalidated it either.
struct Relaxed {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  Relaxed() { real::cuThreadExchangeStreamCaptureMode(&mode); }
  ~Relaxed() { real::cuThreadExchangeStreamCaptureMode(&mode); }
  Relaxed(const Relaxed&) = delete;
};

void ResetCaptures();

}  // namespace stasis::agent
