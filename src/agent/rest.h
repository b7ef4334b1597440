// Quiesces a program: closes its gate, and waits until all submitted work has finished and no call
// waits for it. The work may depend on work that another program has not submitted yet. In that
// case the two gates alternately admit a few calls until nothing is pending
// (gpu_state/close_gates.h).
//
// All functions run on the control thread.
#pragma once

#include <cstdint>

#include "agent/cuda/real.h"

namespace stasis::agent {

// Closes the gate while no stream is being captured, since a capture continues only through an open
// gate. Returns false, with the gate open, if a capture was still open at `deadline_ns` (NowNs()
// time).
bool ShutBetweenCaptures(int64_t deadline_ns);

struct Unrest {
  const char* why = nullptr;      // the start of a sentence; nullptr if the program is quiesced
  CUresult error = CUDA_SUCCESS;  // the driver's error during the wait
  bool no_barrier = false;        // the gate cannot be closed and is open
};
// Waits behind the closed gate until the program is quiescent or `deadline_ns` is reached. It may
// be called again, whatever it returned.
Unrest AwaitRest(int64_t deadline_ns);

// Lets `calls` calls through the closed gate. These may begin captures, so this function then lets
// more calls through until no capture is open. Takes at most half of the time until `deadline_ns`.
void LetThrough(uint32_t calls, int64_t deadline_ns);

}  // namespace stasis::agent
