#include "agent/cuda/held_memory.h"

#include "agent/futex.h"

namespace stasis::agent {
namespace {

enum State : uint32_t { kNone, kCopied, kLost };
std::atomic<uint32_t> g_state{kNone};
std::atomic<int64_t> g_lost_until{0};

// The kernel frees the memory of a killed mover within a second.
constexpr int64_t kLostNs = 10'000'000'000;
// The kernel signals no event when another process has freed GPU memory.
constexpr int64_t kTryAgainNs = 20'000'000;

}  // namespace

void NoteCopyBegins() { g_state.store(kCopied); }

void NoteCopyEnds() {
  if (g_state.exchange(kNone) != kNone) FutexWake(&g_state);
}

void NoteCopyIsLost() {
  g_lost_until.store(NowNs() + kLostNs);
  uint32_t copied = kCopied;
  if (g_state.compare_exchange_strong(copied, kLost)) FutexWake(&g_state);
}

void ResetHeldMemory() { g_state.store(kNone); }

uint32_t HeldMemory() { return g_state.load(); }

bool AwaitHeldMemory(uint32_t before) {
  if (before == kNone) return false;
  if (before == kLost && NowNs() >= g_lost_until.load()) {
    g_state.compare_exchange_strong(before, kNone);
    return false;
  }
  FutexWait(&g_state, before, before == kLost ? kTryAgainNs : -1);
  return true;
}

}  // namespace stasis::agent
