#include "agent/growth.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include <atomic>

#include "agent/control.h"
#include "agent/futex.h"

namespace stasis::agent::growth {
namespace {

constexpr int64_t kMuch = 64ll << 20;  // told at once, if it is an eighth too
constexpr int kMuchPart = 8;
constexpr int kLittlePart = 256;  // less is not told
constexpr int64_t kPauseNs = 1'000'000'000;
constexpr int64_t kNsOfMs = 1'000'000;

char g_path[PATH_MAX];  // empty: none. A copy, because the program may change its environment
std::atomic<int64_t> g_held{0};
std::atomic<int64_t> g_told{0};  // the most memory that was told
std::atomic<bool> g_due{false};  // the control thread was woken
int64_t g_due_since_ns = 0;      // when the control thread first saw it; 0: not yet

bool IsMore(int64_t held, int64_t told) { return held - told > told / kLittlePart; }

void TouchFile() {
  const int before = errno;
  utimensat(AT_FDCWD, g_path, nullptr, AT_SYMLINK_NOFOLLOW);
  errno = before;
}

}  // namespace

void SetSignalFile(const char* path) {
  g_path[0] = '\0';
  if (path != nullptr && strlen(path) < sizeof(g_path)) strcpy(g_path, path);
}

void Add(uint64_t bytes) {
  const int64_t held = g_held.fetch_add(int64_t(bytes)) + int64_t(bytes);
  if (g_path[0] == '\0' || !IsMore(held, g_told.load())) return;
  if (!g_due.exchange(true)) WakeControl();
}

void Remove(uint64_t bytes) { g_held.fetch_sub(int64_t(bytes)); }

int Tell() {
  if (!g_due.load()) return -1;
  const int64_t now = NowNs();
  if (g_due_since_ns == 0) g_due_since_ns = now;
  const int64_t held = g_held.load(), told = g_told.load();
  const bool much = held - told >= kMuch && held - told >= told / kMuchPart;
  const int64_t left_ns = g_due_since_ns + kPauseNs - now;
  if (!much && left_ns > 0) return int(left_ns / kNsOfMs) + 1;
  g_due_since_ns = 0;
  g_due.store(false);  // before the next look: an allocation after it wakes this thread again
  const int64_t latest = g_held.load();
  if (!IsMore(latest, told)) return -1;  // freed meanwhile
  g_told.store(latest);
  TouchFile();
  return -1;
}

void ResetAfterFork() {
  g_held.store(0);
  g_told.store(0);
  g_due.store(false);
  g_due_since_ns = 0;
}

}  // namespace stasis::agent::growth
