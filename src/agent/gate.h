// The gate between the program and the GPU. Every call that submits work or touches memory is
// inside the gate while it runs. Closing the gate blocks new calls and waits for the calls inside.
//
// Calls that wait for work, or query its progress, only become `asking`: a thread blocked in such a
// call may wait for work of a thread that is blocked at the gate. Seal stops them when the work is
// done. The driver's own lock does not block all of them, and cuStreamQuery reads memory that the
// driver's checkpoint removes. Calls that the driver's lock would block (kind Held) ask too: a
// thread that waits at the gate shows that the program wants its GPU, but one in the driver does
// not.
//
// Two words suffice. A thread announces itself (its own `inside`) and then loads the gate's word;
// the closer closes the gate and then loads every `inside`. If both store before they load, at
// least one of the two sees the other.
//
// A processor keeps that order only across a barrier. A barrier in each call would wait for all
// earlier stores of the thread: after a launch also for the doorbell, which crosses PCIe (0.1 us a
// launch). So the closer pays for both sides: between its store and its loads, membarrier() makes
// every thread of the process pass a full barrier. A thread that loaded the word
//   before its barrier  had announced itself even earlier, so the closer sees the announcement;
//   after its barrier   sees the gate closed, because it was closed before membarrier() began.
// Without membarrier in the kernel, kFence in g_word sends every call to EnterSlowly, which has its
// own barrier.
#pragma once

#include <atomic>
#include <cstdint>

namespace stasis::agent::gate {

// A thread's announcements, on its own cache line.
struct alignas(64) Slot {
  std::atomic<uint32_t> inside{0};
  std::atomic<uint32_t> asking{0};
  std::atomic<uint32_t> taken{0};
  std::atomic<uint32_t> blocked{0};  // the thread waits at the gate
  // The number of completed calls. Written by the thread only; its cache line is dirty anyway.
  std::atomic<uint64_t> calls{0};
  Slot* next = nullptr;
};

struct Thread {
  Slot* slot;
  // Nesting depth of hooked calls on this thread. The driver may call its own exported functions,
  // which re-enter the agent. Only the outermost call enters the gate: an inner call that blocked
  // at a closed gate would deadlock.
  uint32_t depth;
  bool background;  // a thread of the agent, which does not count as a use of the GPU
};

// The TLS model is initial-exec, which is possible because the library is loaded at program start.
// The variable is then accessed without a function call.
extern __thread Thread t_thread __attribute__((tls_model("initial-exec")));

constexpr uint32_t kShut = 1;    // no call may become inside
constexpr uint32_t kFence = 2;   // calls need their own barrier; never cleared
constexpr uint32_t kSealed = 4;  // no call may become asking
constexpr uint32_t kTurn = 8;  // and above: a counter; waiting calls check the gate when it changes
extern std::atomic<uint32_t> g_word;

using Word = std::atomic<uint32_t> Slot::*;

// Called before a thread's first passage, outside of the gate. Absent in unit tests.
__attribute__((weak)) void FirstCall();

// Called when a thread of the program begins to wait at the gate, outside of the gate (watch.cc).
void ThreadBlocks();

// The slow path: the first call of a thread, a closed gate, or no membarrier.
void EnterSlowly(Thread* thread, Word word, uint32_t stop);

template <Word kWord, uint32_t kStop>
struct Passage {
  [[gnu::always_inline]] Passage() {
    Thread& thread = t_thread;
    if (thread.depth++ != 0) return;
    Slot* slot = thread.slot;
    if (__builtin_expect(slot != nullptr, 1)) {
      (slot->*kWord).store(1, std::memory_order_relaxed);
      // Keeps the compiler from reordering; membarrier orders the processor (see above).
      std::atomic_signal_fence(std::memory_order_seq_cst);
      const uint32_t word = g_word.load(std::memory_order_acquire);
      if (__builtin_expect((word & (kStop | kFence)) == 0, 1)) return;
    }
    EnterSlowly(&thread, kWord, kStop);
  }
  // Only the outermost Passage of a thread has announced the thread.
  [[gnu::always_inline]] ~Passage() {
    Thread& thread = t_thread;
    if (--thread.depth != 0) return;
    Slot* slot = thread.slot;
    slot->calls.store(slot->calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    (slot->*kWord).store(0, std::memory_order_release);
  }
  Passage(const Passage&) = delete;
};
using Pass = Passage<&Slot::inside, kShut>;
using Ask = Passage<&Slot::asking, kSealed>;

// While an Exempt exists, its thread never blocks at the gate and is never counted as inside. It is
// used by the control thread, by the drains, and by driver threads that run the program's
// callbacks, since the drain waits for the work that they finish.
struct Exempt {
  Exempt() { ++t_thread.depth; }
  ~Exempt() { --t_thread.depth; }
  Exempt(const Exempt&) = delete;
};

// While an Outside exists, the gate may close although its thread is inside: the call waits for
// something other than the GPU, for example a suspended process. The destructor may block at the
// gate. No effect in a nested call.
class Outside {
 public:
  Outside();
  ~Outside();
  Outside(const Outside&) = delete;
  // Returns false if this object has no effect.
  bool left() const { return left_; }

 private:
  const bool left_;
};

// Like Ask, but never blocks; for the agent's own threads. inside() returns false if the gate is
// sealed. Otherwise Seal waits until this object is destroyed.
class TryAsk {
 public:
  TryAsk();
  ~TryAsk();
  TryAsk(const TryAsk&) = delete;
  bool inside() const { return inside_; }

 private:
  bool inside_;
};

// Registers the process for membarrier. Without this call, the first Close registers the process
// and takes a few ms longer. Safe to call from any thread.
void Prepare();

enum class Closing {
  kClosed,
  kDeadline,   // a call did not end; the gate stays closed: call Close again, or Open
  kNoBarrier,  // the kernel now refuses membarrier (a new seccomp filter); the gate is open
};
// Closes the gate and waits until no call is inside, or until `deadline_ns` (NowNs() time). Only
// the control thread may close, seal and open.
Closing Close(int64_t deadline_ns);
// Blocks new asking calls and waits until none is in progress, or until `deadline_ns`. The gate
// must be closed, and all submitted work must have finished.
Closing Seal(int64_t deadline_ns);
// Lets up to `calls` calls pass the closed gate until `deadline_ns`, from any threads, and all
// asking calls. Returns how many calls passed. Afterwards the gate is closed again, and Close waits
// for the calls that passed.
uint32_t LetThrough(uint32_t calls, int64_t deadline_ns);
void Open();
bool IsClosed();

// Says that the calling thread is one of the agent: it waits at the gate, but is not reported.
void MarkBackground();
// Returns true if a thread of the program waits at the closed gate.
bool HasBlockedThread();
struct Use {
  uint64_t calls;  // completed calls; only grows
  bool in_call;    // a thread is in a call now
};
Use UseNow();

// For a forked child: opens the gate and drops the slots of the parent's other threads.
void ResetAfterFork();

}  // namespace stasis::agent::gate
