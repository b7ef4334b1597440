// The gate between the program and the GPU. Every call that submits work or touches memory is
// inside while it runs. Closing it stops newcomers and waits for those that are inside.
//
// Why two words suffice: a thread announces itself (its own `inside`), then looks at the gate; who
// closes shuts the gate, then looks at every `inside`. All four are sequentially consistent, so at
// least one of the two sees the other. The announcement is on a cache line of the thread's own.
#pragma once

#include <atomic>
#include <cstdint>

namespace stasis::agent::gate {

struct alignas(64) Slot {
  std::atomic<uint32_t> inside{0};
  std::atomic<uint32_t> taken{0};
  Slot* next = nullptr;
};

struct Thread {
  Slot* slot;
  // A call may come back to us from inside itself (a driver that calls its own exported functions):
  // counted twice it would wait for itself at a closed gate.
  uint32_t depth;
  // Control thread, and driver threads that run the program's callbacks: those must never stand at
  // the gate, since the drain waits for the work that they finish.
  uint32_t exempt;
};

// Initial-exec: the library is there from the start, so no call is needed to find them.
extern __thread Thread t_thread __attribute__((tls_model("initial-exec")));
extern std::atomic<uint32_t> g_closed;

Slot* Register();
void WaitOutside(Slot* slot);

inline void Enter() {
  Thread& thread = t_thread;
  if (thread.depth++ != 0 || thread.exempt != 0) return;
  Slot* slot = thread.slot;
  if (__builtin_expect(slot == nullptr, 0)) slot = Register();
  slot->inside.exchange(1, std::memory_order_seq_cst);
  if (__builtin_expect(g_closed.load(std::memory_order_seq_cst) != 0, 0)) WaitOutside(slot);
}

inline void Leave() {
  Thread& thread = t_thread;
  if (--thread.depth != 0 || thread.exempt != 0) return;
  thread.slot->inside.store(0, std::memory_order_release);
}

struct Pass {
  Pass() { Enter(); }
  ~Pass() { Leave(); }
  Pass(const Pass&) = delete;
};

// Shuts the gate and waits until nobody is inside, or until `deadline_ns` (NowNs() time): then it
// is open again and the answer is false. Only the control thread closes and opens.
bool Close(int64_t deadline_ns);
void Open();
bool IsClosed();

// In a forked child: open, and nobody inside but the caller.
void ResetAfterFork();

}  // namespace stasis::agent::gate
