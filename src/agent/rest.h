// How a program comes to rest: its gate is shut, what it has submitted has ended, and nobody asks
// for it any more. Work may wait for another program's, which is yet to be submitted: then the
// other one's calls are let through in steps, and so in turns until nobody waits
// (coordinator/close_gates.h).
//
// By the control thread alone.
#pragma once

#include <cstdint>

#include "agent/cuda/real.h"

namespace stasis::agent {

// Shuts the gate at a moment when no stream is being captured: a capture goes on only through an
// open gate. false: there was none until `deadline_ns` (NowNs() time), and the gate is open.
bool ShutBetweenCaptures(int64_t deadline_ns);

struct Unrest {
  const char* why = nullptr;      // the start of a sentence; nullptr: the program is at rest
  CUresult error = CUDA_SUCCESS;  // of the driver's, while it was waited for
  bool no_barrier = false;        // the gate cannot shut, and is open
};
// Waits for it behind the shut gate, until `deadline_ns`. Whatever it says, it may be asked again.
Unrest AwaitRest(int64_t deadline_ns);

// Behind the shut gate: so many more calls go through, and as many as a capture that they begin
// needs to end; for half of the time until `deadline_ns` at most.
void LetThrough(uint32_t calls, int64_t deadline_ns);

}  // namespace stasis::agent
