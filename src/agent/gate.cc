#include "agent/gate.h"

#include <sys/mman.h>

#include "agent/futex.h"

// Runs a function when a thread ends. In glibc since 2.18, unlike keys without libpthread.
extern "C" int __cxa_thread_atexit_impl(void (*)(void*), void*, void*) __attribute__((weak));
extern "C" void* __dso_handle __attribute__((visibility("hidden")));

namespace stasis::agent::gate {

__thread Thread t_thread __attribute__((tls_model("initial-exec")));
std::atomic<uint32_t> g_closed{0};

namespace {

constexpr size_t kChunk = 64 * 1024;
std::atomic<Slot*> g_slots{nullptr};
// For a thread that gets no memory: shared, so closing cannot tell who left. It never happens to a
// program that could still start a thread.
Slot g_last_resort;

// The thread's own slot goes to the next thread that needs one. Should it call again after this (a
// destructor that runs later), it takes one anew.
void ThreadEnds(void* slot) {
  t_thread.slot = nullptr;
  // A thread that was cancelled within a call never left.
  static_cast<Slot*>(slot)->inside.store(0, std::memory_order_release);
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

}  // namespace

Slot* Register() {
  Slot* slot = TakeFree();
  if (slot == nullptr) slot = AddChunk();
  t_thread.slot = slot;
  if (__cxa_thread_atexit_impl != nullptr && slot != &g_last_resort) {
    __cxa_thread_atexit_impl(ThreadEnds, slot, &__dso_handle);
  }
  return slot;
}

void WaitOutside(Slot* slot) {
  do {
    slot->inside.store(0, std::memory_order_seq_cst);
    FutexWake(&slot->inside, 1);
    while (g_closed.load(std::memory_order_seq_cst) != 0) FutexWait(&g_closed, 1);
    slot->inside.exchange(1, std::memory_order_seq_cst);
  } while (g_closed.load(std::memory_order_seq_cst) != 0);
}

bool Close(int64_t deadline_ns) {
  g_closed.store(1, std::memory_order_seq_cst);
  // Leaving does not wake us: that would cost every call a look at the gate. So we look ourselves,
  // twenty times a millisecond.
  constexpr int64_t kLookAgainNs = 50 * 1000;
  for (Slot* s = g_slots.load(std::memory_order_seq_cst); s != nullptr; s = s->next) {
    while (s->inside.load(std::memory_order_seq_cst) != 0) {
      if (NowNs() >= deadline_ns) {
        Open();
        return false;
      }
      FutexWait(&s->inside, 1, kLookAgainNs);
    }
  }
  return true;
}

void Open() {
  g_closed.store(0, std::memory_order_seq_cst);
  FutexWake(&g_closed);
}

bool IsClosed() { return g_closed.load() != 0; }

void ResetAfterFork() {
  for (Slot* s = g_slots.load(); s != nullptr; s = s->next) {
    if (s == t_thread.slot) continue;
    s->inside.store(0);
    s->taken.store(0);
  }
  g_closed.store(0);
}

}  // namespace stasis::agent::gate
