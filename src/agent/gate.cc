#include "agent/gate.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sys/mman.h>

#include "agent/blockers.h"
#include "agent/futex.h"

// Runs a function when a thread ends. It exists since glibc 2.18 and, unlike pthread keys, needs no
// libpthread.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
extern "C" int __cxa_thread_atexit_impl(void (*)(void*), void*, void*) __attribute__((weak));
extern "C" void* __dso_handle __attribute__((visibility("hidden")));
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

namespace stasis::agent::gate {

__thread Thread t_thread __attribute__((tls_model("initial-exec")));
alignas(64) std::atomic<uint32_t> g_word{0};

namespace {

// The number of tickets: calls that may still pass the closed gate.
std::atomic<uint32_t> g_tickets{0};

constexpr size_t kChunk = size_t{64} * 1024;
std::atomic<Slot*> g_slots{nullptr};
// Shared by all threads for which no slot could be allocated. It is in no list, so a close does not
// wait for their calls. A blocker is therefore noted, and from then on only the driver's checkpoint
// can save the program's GPU state.
Slot g_last_resort;

// Frees the thread's slot for the next thread that needs one. If the thread makes another call
// after that, in a destructor, it takes a new slot.
void ThreadEnds(void* slot) {
  t_thread.slot = nullptr;
  // A thread that is cancelled or exits within a call does not leave the gate by itself, so clear
  // its announcements here.
  t_thread.depth = 0;
  static_cast<Slot*>(slot)->inside.store(0, std::memory_order_release);
  static_cast<Slot*>(slot)->asking.store(0, std::memory_order_release);
  static_cast<Slot*>(slot)->blocked.store(0, std::memory_order_release);
  static_cast<Slot*>(slot)->taken.store(0, std::memory_order_release);
}

Slot* TakeFree() {
  for (Slot* s = g_slots.load(std::memory_order_acquire); s != nullptr; s = s->next) {
    uint32_t free = 0;
    if (s->taken.load(std::memory_order_relaxed) == 0 &&
        s->taken.compare_exchange_strong(free, 1)) {
      return s;
    }
  }
  return nullptr;
}

void Publish(Slot* first, Slot* last) {
  Slot* head = g_slots.load();
  do {
    last->next = head;
  } while (!g_slots.compare_exchange_weak(head, first, std::memory_order_seq_cst));
}

Slot* AddChunk() {
  void* memory = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return &g_last_resort;
  auto* slots = static_cast<Slot*>(memory);
  constexpr size_t kCount = kChunk / sizeof(Slot);
  for (size_t i = 0; i + 1 < kCount; ++i) slots[i].next = &slots[i + 1];
  slots[0].taken.store(1, std::memory_order_relaxed);
  Publish(&slots[0], &slots[kCount - 1]);
  return &slots[0];
}

// Returns the kernel's result, or the negative error. Preserves errno.
int Membarrier(int command) {
  const int before = errno;
  const int r = int(syscall(SYS_membarrier, command, 0, 0));
  const int error = errno;
  errno = before;
  return r < 0 ? -error : r;
}

// Every thread must call this before its first announcement. Without membarrier it sets kFence, and
// that must happen before any thread enters without a barrier of its own, because nothing could
// order that thread later. With membarrier, registration can wait for the first Close, whose
// barrier also orders everything before it.
void ChooseBarrier() {
  static std::atomic<bool> chosen{false};
  if (chosen.load(std::memory_order_acquire)) return;
  const int can = Membarrier(MEMBARRIER_CMD_QUERY);
  if (can < 0 || (can & MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) g_word.fetch_or(kFence);
  chosen.store(true, std::memory_order_release);
}

bool BarrierInEveryThread() {
  int r = Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  if (r == -EPERM) {  // not registered: the first time, or after a restore by an older CRIU
    Prepare();
    r = Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  }
  return r == 0;
}

void NoteUnseenThread() {
  NoteBlocker(agent_protocol::kBlockerUnseenThread, "no memory to record a call");
}

Slot* Register() {
  ChooseBarrier();
  Slot* slot = TakeFree();
  if (slot == nullptr) slot = AddChunk();
  t_thread.slot = slot;
  // Note the blocker before the thread announces its first call, because a close reads the blockers
  // after it has waited for the calls inside.
  if (slot == &g_last_resort) {
    NoteUnseenThread();
  } else if (__cxa_thread_atexit_impl != nullptr) {
    __cxa_thread_atexit_impl(ThreadEnds, slot, &__dso_handle);
  }
  return slot;
}

// Sets `stop`, so that no further call enters, and waits until `word` is 0 in every slot.
Closing Stop(uint32_t stop, Word word, int64_t deadline_ns) {
  const uint32_t before = g_word.fetch_or(stop, std::memory_order_seq_cst);
  if ((before & kFence) == 0 && !BarrierInEveryThread()) {
    Open();
    return Closing::kNoBarrier;
  }
  // A call that leaves does not wake the closer, because for that each call would have to load the
  // gate's word. So the closer polls, twenty times a millisecond.
  constexpr int64_t kLookAgainNs = int64_t{50} * 1000;
  for (Slot* s = g_slots.load(std::memory_order_seq_cst); s != nullptr; s = s->next) {
    while ((s->*word).load(std::memory_order_seq_cst) != 0) {
      if (NowNs() >= deadline_ns) return Closing::kDeadline;
      FutexWait(&(s->*word), 1, kLookAgainNs);
    }
  }
  return Closing::kClosed;
}

// Takes one ticket, if any is left. The caller's `inside` must be set. LetThrough takes the
// remaining tickets back before Close loads every `inside`, and so Close sees every call that got a
// ticket.
bool TakeTicket() {
  uint32_t left = g_tickets.load(std::memory_order_seq_cst);
  while (left != 0) {
    if (!g_tickets.compare_exchange_weak(left, left - 1, std::memory_order_seq_cst)) continue;
    if (left == 1) FutexWake(&g_tickets);
    return true;
  }
  return false;
}

// Reports a thread of the program that waits at the gate.
class Blocked {
 public:
  explicit Blocked(const Thread& thread) : slot_(thread.slot) {
    if (thread.background) return;
    slot_->blocked.store(1, std::memory_order_seq_cst);
    ThreadBlocks();
  }
  ~Blocked() { slot_->blocked.store(0, std::memory_order_seq_cst); }
  Blocked(const Blocked&) = delete;

 private:
  Slot* slot_;
};

}  // namespace

void EnterSlowly(Thread* thread, Word word, uint32_t stop) {
  if (thread->slot == nullptr && FirstCall != nullptr) FirstCall();
  Slot* slot = thread->slot != nullptr ? thread->slot : Register();
  std::atomic<uint32_t>& mine = slot->*word;
  const bool counts = stop == kShut;
  for (;;) {
    mine.exchange(1, std::memory_order_seq_cst);
    uint32_t now = g_word.load(std::memory_order_seq_cst);
    if ((now & stop) == 0 || (counts && TakeTicket())) return;
    mine.store(0, std::memory_order_seq_cst);
    FutexWake(&mine, 1);
    const Blocked blocked(*thread);
    while ((now & stop) != 0 && !(counts && g_tickets.load(std::memory_order_seq_cst) != 0)) {
      FutexWait(&g_word, now);
      now = g_word.load(std::memory_order_seq_cst);
    }
  }
}

Outside::Outside()
    : left_(t_thread.depth == 1 && t_thread.slot != nullptr && t_thread.slot->inside.load() != 0) {
  if (!left_) return;
  t_thread.slot->inside.store(0, std::memory_order_release);
  FutexWake(&t_thread.slot->inside, 1);
}
Outside::~Outside() {
  if (left_) EnterSlowly(&t_thread, &Slot::inside, kShut);
}

TryAsk::TryAsk() {
  Thread& thread = t_thread;
  Slot* slot = thread.slot != nullptr ? thread.slot : Register();
  slot->asking.exchange(1, std::memory_order_seq_cst);
  inside_ = (g_word.load(std::memory_order_seq_cst) & kSealed) == 0;
  if (inside_) {
    ++thread.depth;
    return;
  }
  slot->asking.store(0, std::memory_order_seq_cst);
  FutexWake(&slot->asking, 1);
}
TryAsk::~TryAsk() {
  if (!inside_) return;
  --t_thread.depth;
  t_thread.slot->asking.store(0, std::memory_order_release);
}

void Prepare() { Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }

Closing Close(int64_t deadline_ns) {
  ChooseBarrier();
  return Stop(kShut, &Slot::inside, deadline_ns);
}

Closing Seal(int64_t deadline_ns) { return Stop(kSealed, &Slot::asking, deadline_ns); }

uint32_t LetThrough(uint32_t calls, int64_t deadline_ns) {
  // kSealed is cleared first, because a thread that finds the gate sealed may assume that all work
  // has finished.
  g_word.fetch_and(~kSealed, std::memory_order_seq_cst);
  g_tickets.store(calls, std::memory_order_seq_cst);
  // A thread that has just found no ticket waits on the old value; changing the word makes that
  // wait return.
  g_word.fetch_add(kTurn, std::memory_order_seq_cst);
  FutexWake(&g_word);
  for (uint32_t left = calls; left != 0; left = g_tickets.load(std::memory_order_seq_cst)) {
    const int64_t span = deadline_ns - NowNs();
    if (span <= 0) break;
    FutexWait(&g_tickets, left, span);
  }
  return calls - g_tickets.exchange(0, std::memory_order_seq_cst);
}

void Open() {
  g_word.fetch_and(~(kShut | kSealed), std::memory_order_seq_cst);
  FutexWake(&g_word);
}

bool IsClosed() { return (g_word.load() & kShut) != 0; }

void MarkBackground() { t_thread.background = true; }

bool HasBlockedThread() {
  for (Slot* s = g_slots.load(std::memory_order_acquire); s != nullptr; s = s->next) {
    if (s->blocked.load(std::memory_order_seq_cst) != 0) return true;
  }
  return false;
}

Use UseNow() {
  Use use{0, false};
  for (Slot* s = g_slots.load(std::memory_order_acquire); s != nullptr; s = s->next) {
    use.calls += s->calls.load(std::memory_order_relaxed);
    use.in_call |= s->inside.load(std::memory_order_relaxed) != 0 ||
                   s->asking.load(std::memory_order_relaxed) != 0;
  }
  return use;
}

void ResetAfterFork() {
  for (Slot* s = g_slots.load(); s != nullptr; s = s->next) {
    if (s == t_thread.slot) continue;
    s->inside.store(0);
    s->asking.store(0);
    s->blocked.store(0);
    s->taken.store(0);
  }
  g_tickets.store(0);
  g_word.fetch_and(~(kShut | kSealed));
  // The reset of the blockers in the child also removed the blocker of this thread, which has no
  // slot of its own. Note that blocker again.
  if (t_thread.slot == &g_last_resort) NoteUnseenThread();
}

}  // namespace stasis::agent::gate
