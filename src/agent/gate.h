// The gate between the program and the GPU. Every call that submits work or touches memory is
// inside while it runs. Closing it stops newcomers and waits for those that are inside.
//
// Calls that wait for work, or ask how far it is, only become `asking`: a thread that is parked in
// one may wait for work of a thread that stands at the gate. They are stopped by Seal, when the
// work is done: the driver's own lock does not hold all of them up, and cuStreamQuery reads memory
// that its checkpoint takes away.
//
// Why two words suffice: a thread announces itself (its own `inside`), then looks at the gate; who
// closes shuts the gate, then looks at every `inside`. If in both the store comes before the load,
// at least one of the two sees the other.
//
// A processor keeps that order only across a barrier, and a barrier in Enter waits for all that the
// thread has stored before: after a launch also for the doorbell, which crosses PCIe (0.1 us a
// launch). So the closer pays for both sides: between its store and its loads, membarrier() makes
// every thread of the process pass a full barrier. Take a thread's point there:
//   it looked at the gate before  its announcement is older still, so the closer sees it;
//   it looks after                the gate was shut before membarrier() began, so it sees that.
// Where the kernel has no membarrier, kFence in g_word sends every Enter to its slow part, which
// has a barrier of its own.
#pragma once

#include <atomic>
#include <cstdint>

namespace stasis::agent::gate {

// On a cache line of the thread's own.
struct alignas(64) Slot {
  std::atomic<uint32_t> inside{0};
  std::atomic<uint32_t> asking{0};
  std::atomic<uint32_t> taken{0};
  Slot* next = nullptr;
};

struct Thread {
  Slot* slot;
  // Calls that this thread is in. A call may come back to us from inside itself (a driver that
  // calls its own exported functions): counted twice it would wait for itself at a closed gate.
  uint32_t depth;
};

// Initial-exec: the library is there from the start, so no call is needed to find them.
extern __thread Thread t_thread __attribute__((tls_model("initial-exec")));

constexpr uint32_t kShut = 1;    // nobody may come inside
constexpr uint32_t kFence = 2;   // for good: threads must bring their own barrier
constexpr uint32_t kSealed = 4;  // nobody may ask
constexpr uint32_t kTurn = 8;  // and above: counted up when those at the shut gate shall look again
extern std::atomic<uint32_t> g_word;

using Word = std::atomic<uint32_t> Slot::*;

// What Enter does besides: the first call of a thread, a gate that is shut, no membarrier.
void EnterSlowly(Thread* thread, Word word, uint32_t stop);

template <Word kWord, uint32_t kStop>
struct Passage {
  [[gnu::always_inline]] Passage() {
    Thread& thread = t_thread;
    if (thread.depth++ != 0) return;
    Slot* slot = thread.slot;
    if (__builtin_expect(slot != nullptr, 1)) {
      (slot->*kWord).store(1, std::memory_order_relaxed);
      // The compiler must keep the order too: then the proof above has only the processor to tame.
      std::atomic_signal_fence(std::memory_order_seq_cst);
      const uint32_t word = g_word.load(std::memory_order_acquire);
      if (__builtin_expect((word & (kStop | kFence)) == 0, 1)) return;
    }
    EnterSlowly(&thread, kWord, kStop);
  }
  // The outermost passage of a thread is the one that announced itself.
  [[gnu::always_inline]] ~Passage() {
    Thread& thread = t_thread;
    if (--thread.depth != 0) return;
    (thread.slot->*kWord).store(0, std::memory_order_release);
  }
  Passage(const Passage&) = delete;
};
using Pass = Passage<&Slot::inside, kShut>;
using Ask = Passage<&Slot::asking, kSealed>;

// While one lives, its thread never stands at the gate and is never counted as inside: the control
// thread, the drains, and driver threads that run the program's callbacks, since the drain waits
// for the work that they finish.
struct Exempt {
  Exempt() { ++t_thread.depth; }
  ~Exempt() { --t_thread.depth; }
  Exempt(const Exempt&) = delete;
};

// While one lives, the gate may close although its thread is in a call that passed it: the call
// waits for something else than the GPU, maybe for a process that is suspended. Its end may stand
// at the gate. Of no effect in a call within a call.
class Outside {
 public:
  Outside();
  ~Outside();
  Outside(const Outside&) = delete;

 private:
  const bool left_;
};

// For a thread of ours that wants to ask for work, but must not stand at the gate: an Ask where
// that is possible now. While one lives that is inside, Seal waits.
class TryAsk {
 public:
  TryAsk();
  ~TryAsk();
  TryAsk(const TryAsk&) = delete;
  bool inside() const { return inside_; }

 private:
  bool inside_;
};

// Makes the kernel ready for the first Close, which is slower without (a few ms). Any thread.
void Prepare();

enum class Closing {
  kClosed,
  kDeadline,   // a call did not end: the gate stays shut, so that one may wait on, or Open
  kNoBarrier,  // the kernel no longer does what it did before (a seccomp filter): it is open
};
// Shuts the gate and waits until nobody is inside, or until `deadline_ns` (NowNs() time). Only the
// control thread closes, seals and opens.
Closing Close(int64_t deadline_ns);
// While it is closed and the work is done: the same for those that ask.
Closing Seal(int64_t deadline_ns);
// While it is shut: so many calls may come inside all the same, of whichever threads stand at it or
// come until `deadline_ns`, and those that ask may pass. How many did. Then it is shut as before,
// and Close waits for those that came in.
uint32_t LetThrough(uint32_t calls, int64_t deadline_ns);
void Open();
bool IsClosed();

// In a forked child: open, and nobody inside but the caller.
void ResetAfterFork();

}  // namespace stasis::agent::gate
