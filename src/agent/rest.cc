#include "agent/rest.h"

#include "agent/cuda/captures.h"
#include "agent/cuda/contexts.h"
#include "agent/futex.h"
#include "agent/gate.h"

namespace stasis::agent {

bool ShutBetweenCaptures(int64_t deadline_ns) {
  for (;;) {
    while (CapturesOpen() != 0) {
      if (NowNs() >= deadline_ns) return false;
      std::atomic<uint32_t> never{0};
      FutexWait(&never, 0, 1000000);
    }
    if (gate::Close(deadline_ns) != gate::Closing::kClosed || CapturesOpen() == 0) return true;
    gate::Open();
  }
}

Unrest AwaitRest(int64_t deadline_ns) {
  Unrest unrest;
  gate::Closing closing = gate::Close(deadline_ns);
  unrest.no_barrier = closing == gate::Closing::kNoBarrier;
  if (closing != gate::Closing::kClosed) {
    unrest.why = "a call into the driver did not end";
  } else if (CapturesOpen() != 0) {
    unrest.why = "a stream capture did not end";
  } else if (!DrainContexts(deadline_ns, &unrest.error)) {
    unrest.why = unrest.error == CUDA_SUCCESS ? "the program's work on the GPU did not end"
                                              : "waiting for the program's GPU work to finish";
  } else if (closing = gate::Seal(deadline_ns); closing != gate::Closing::kClosed) {
    unrest.no_barrier = closing == gate::Closing::kNoBarrier;
    unrest.why = "a call that waits for the GPU did not return, although its work has ended";
  }
  return unrest;
}

void LetThrough(uint32_t calls, int64_t deadline_ns) {
  const int64_t until = NowNs() + (deadline_ns - NowNs()) / 2;
  if (calls != 0) (void)gate::LetThrough(calls, until);
  while (CapturesOpen() != 0 && NowNs() < until) (void)gate::LetThrough(1, until);
}

}  // namespace stasis::agent
