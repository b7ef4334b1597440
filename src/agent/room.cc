#include "agent/room.h"

#include <atomic>

#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/vector.h"
#include "agent/watch.h"

namespace stasis::agent::room {
namespace {

constexpr int64_t kWatcherComesNs = 5'000'000'000;
// Until the first watcher sets another bound.
constexpr int64_t kLongestNs = 60'000'000'000;

enum class Watching : uint32_t {
  kNever,     // nothing waits
  kExpected,  // the first watcher will connect soon
  kServed,    // a watcher is connected
  kAway,      // it has disconnected, and another one will connect
};

enum class Verdict : uint32_t { kNone, kTryAgain, kFail };

struct Entry {
  Waiting waiting;
  Verdict verdict;
};

Mutex g_mutex;  // guards the table
Vector<Entry> g_entries;
uint64_t g_last_number = 0;

std::atomic<Watching> g_watching{Watching::kNever};
std::atomic<int64_t> g_longest_ns{kLongestNs};
// Until the first watcher sets it: as much as SpareBytes() allows. A program that started with less
// free would leave no room for the context of a suspend.
std::atomic<uint64_t> g_spare_bytes{UINT64_MAX};
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
  const Watching watching = g_watching.load();
  if (watching != Watching::kServed && watching != Watching::kAway) return 0;
  if (!g_entries.Push({{g_last_number + 1, attempts, request}, Verdict::kNone})) return 0;
  g_waiting.fetch_add(1);
  return ++g_last_number;
}

// No watcher has come in time, so nothing waits for it any more.
void GiveUp(Watching waited) { g_watching.compare_exchange_strong(waited, Watching::kNever); }

// Waits for the first watcher.
void AwaitWatcher() {
  const int64_t deadline_ns = NowNs() + kWatcherComesNs;
  while (g_watching.load() == Watching::kExpected) {
    const uint32_t turn = g_turn.load();
    const int64_t left_ns = deadline_ns - NowNs();
    if (left_ns <= 0) {
      GiveUp(Watching::kExpected);
    } else if (g_watching.load() == Watching::kExpected) {
      FutexWait(&g_turn, turn, left_ns);
    }
  }
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

int64_t Wait::TimeLeftNs() {
  const int64_t now_ns = NowNs();
  // A program that was restored on another machine can find an earlier time.
  if (since_ns_ == 0 || now_ns < since_ns_) since_ns_ = now_ns;
  return since_ns_ + g_longest_ns.load() - now_ns;
}

bool Wait::Await(const Request& request, uint32_t frees) {
  if (last_ || !IsServed()) return false;
  // A call within a call of the driver may hold locks of the driver, so it must not wait.
  const gate::Outside outside;
  if (!outside.left()) return false;
  AwaitWatcher();
  if (number_ == 0) {
    number_ = Enter(request, attempts_);
    if (number_ == 0) return false;
    NoteNews();
  }
  for (;;) {
    const uint32_t turn = g_turn.load();
    const Verdict verdict = VerdictOn(number_);
    const bool freed = Frees() != frees;
    if (verdict == Verdict::kNone && freed) return true;  // keeps its place in the table
    if (verdict == Verdict::kNone) {
      const int64_t left_ns = TimeLeftNs();
      if (left_ns > 0) {
        FutexWait(&g_turn, turn, left_ns);
        continue;
      }
      GiveUp(Watching::kAway);
      Leave();
      return false;
    }
    Leave();
    ++attempts_;
    // The program may have freed memory meanwhile.
    last_ = verdict == Verdict::kFail;
    return !last_ || Frees() != frees;
  }
}

void ExpectWatcher() { g_watching.store(Watching::kExpected); }

bool IsServed() { return g_watching.load() != Watching::kNever; }

void WatcherCame() {
  g_watching.store(Watching::kServed);
  NextTurn();
}

void SetLongestWait(int64_t longest_ns) {
  g_longest_ns.store(longest_ns);
  NextTurn();
}

void SetSpare(uint64_t bytes) { g_spare_bytes.store(bytes); }

uint64_t SpareBytes(uint64_t total_bytes) {
  const uint64_t most = total_bytes / 16, bytes = g_spare_bytes.load();
  return bytes < most ? bytes : most;
}

void WatcherLeft(bool returns) {
  // Under the lock, so that no allocation enters the table between the change and the loop.
  {
    Lock lock(g_mutex);
    g_watching.store(returns ? Watching::kAway : Watching::kNever);
    for (Entry& entry : g_entries) {
      if (!returns && entry.verdict == Verdict::kNone) entry.verdict = Verdict::kFail;
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
  g_watching.store(Watching::kNever);
  g_waiting.store(0);
}

}  // namespace stasis::agent::room
