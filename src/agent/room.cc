#include "agent/room.h"

#include <atomic>

#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/vector.h"
#include "agent/watch.h"

namespace stasis::agent::room {
namespace {

constexpr int64_t kWatcherComesNs = 5'000'000'000;

enum class Verdict : uint32_t { kNone, kTryAgain, kFail };

struct Entry {
  Waiting waiting;
  Verdict verdict;
};

Mutex g_mutex;  // guards the table
Vector<Entry> g_entries;
uint64_t g_last_number = 0;

std::atomic<bool> g_served{false};  // set by the control thread
// No watcher has been connected yet, and one will be.
std::atomic<bool> g_expected{false};
std::atomic<uint32_t> g_frees{0};
std::atomic<uint32_t> g_waiting{0};  // entries in the table
// Waiting threads check their entries when it changes.
std::atomic<uint32_t> g_turn{0};

void NextTurn() {
  g_turn.fetch_add(1);
  FutexWake(&g_turn);
}

size_t IndexOf(uint64_t number) {
  return g_entries.FindIf([&](const Entry& entry) { return entry.waiting.number == number; });
}

// Adds an allocation to the table and returns its number, or 0 if it cannot wait.
uint64_t Enter(const Request& request, uint32_t attempts) {
  Lock lock(g_mutex);
  if (!g_served.load()) return 0;
  if (!g_entries.Push({{g_last_number + 1, attempts, request}, Verdict::kNone})) return 0;
  g_waiting.fetch_add(1);
  return ++g_last_number;
}

// Waits for the first watcher. Returns false if none has come.
bool AwaitWatcher() {
  const int64_t deadline_ns = NowNs() + kWatcherComesNs;
  while (!g_served.load() && g_expected.load()) {
    const uint32_t turn = g_turn.load();
    const int64_t left_ns = deadline_ns - NowNs();
    if (left_ns <= 0) {
      g_expected.store(false);
    } else if (!g_served.load()) {
      FutexWait(&g_turn, turn, left_ns);
    }
  }
  return g_served.load();
}

Verdict VerdictOn(uint64_t number) {
  Lock lock(g_mutex);
  const size_t i = IndexOf(number);
  return i < g_entries.size() ? g_entries[i].verdict : Verdict::kFail;
}

}  // namespace

uint32_t Frees() { return g_frees.load(); }

void NoteFree() {
  g_frees.fetch_add(1);
  if (g_waiting.load() != 0) NextTurn();
}

void Wait::Leave() {
  if (number_ == 0) return;
  {
    Lock lock(g_mutex);
    const size_t i = IndexOf(number_);
    if (i < g_entries.size()) {
      g_entries.Erase(i);
      g_waiting.fetch_sub(1);
    }
  }
  number_ = 0;
  NoteNews();
}

bool Wait::Await(const Request& request, uint32_t frees) {
  if (last_ || !IsServed()) return false;
  // A call within a call of the driver may hold locks of the driver, so it must not wait.
  const gate::Outside outside;
  if (!outside.left() || !AwaitWatcher()) return false;
  if (number_ == 0) {
    number_ = Enter(request, attempts_);
    if (number_ == 0) return false;
    NoteNews();
  }
  for (;;) {
    const uint32_t turn = g_turn.load();
    const Verdict verdict = VerdictOn(number_);
    if (verdict == Verdict::kNone && Frees() == frees) {
      FutexWait(&g_turn, turn);
      continue;
    }
    if (verdict == Verdict::kNone) return true;  // keeps its place in the table
    Leave();
    ++attempts_;
    // The program may have freed memory meanwhile.
    last_ = verdict == Verdict::kFail;
    return !last_ || Frees() != frees;
  }
}

void ExpectWatcher() { g_expected.store(true); }

bool IsServed() { return g_served.load() || g_expected.load(); }

void SetServed(bool served) {
  g_served.store(served);
  if (served) {
    g_expected.store(false);
  } else {
    Lock lock(g_mutex);
    for (Entry& entry : g_entries) {
      if (entry.verdict == Verdict::kNone) entry.verdict = Verdict::kFail;
    }
  }
  NextTurn();
}

bool First(Waiting* out) {
  Lock lock(g_mutex);
  for (const Entry& entry : g_entries) {
    if (entry.verdict != Verdict::kNone) continue;
    *out = entry.waiting;
    return true;
  }
  return false;
}

void Answer(uint64_t number, bool try_again) {
  {
    Lock lock(g_mutex);
    const size_t i = IndexOf(number);
    if (i == g_entries.size() || g_entries[i].verdict != Verdict::kNone) return;
    g_entries[i].verdict = try_again ? Verdict::kTryAgain : Verdict::kFail;
  }
  NextTurn();
}

void ResetAfterFork() {
  g_mutex.ResetAfterFork();
  g_entries.AbandonAfterFork();
  g_served.store(false);
  g_expected.store(false);
  g_waiting.store(0);
}

}  // namespace stasis::agent::room
