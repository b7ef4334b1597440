#include "fault.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <utility>

namespace softgpu::fault {
namespace {

// The restore thread uses fault injection too, so this code neither allocates nor takes a lock that
// could stay held.
constexpr int kMaxRules = 32;
constexpr size_t kMaxSpec = 2048;

enum class Action { kFail, kHang, kHold, kDie, kLate };

struct Rule {
  bool target = false;
  char symbol[64] = {};
  int countdown = 0;  // 0: every call
  bool spent = false;
  Action action = Action::kFail;
  int value = 0;
};

Rule g_rules[kMaxRules];
int g_count = 0;
std::atomic<int> g_busy{0};  // a lock that guards all other globals here
char g_directory[96];
bool g_environment_read = false;
thread_local int t_late_ms = 0;

struct Source {
  const char* suffix;
  uint64_t seen = 0;
};
Source g_all{"/fault"};
Source g_mine{nullptr};
char g_mine_suffix[32];

struct Alias {
  const char* hip;
  const char* driver;
};
constexpr Alias kAliases[] = {
#define STASIS_HIP_SAME(symbol, driver) {#symbol, #driver},
#include "abi/hip/functions.def"
};

// Returns the driver function that serves a HIP function. Returns other names unchanged.
const char* DriverName(const char* symbol) {
  for (const Alias& alias : kAliases) {
    if (strcmp(alias.hip, symbol) == 0) return alias.driver;
  }
  return symbol;
}

void ParseRule(char* text) {
  if (g_count >= kMaxRules) return;
  Rule& rule = g_rules[g_count];
  rule.target = strncmp(text, "target:", 7) == 0;
  if (rule.target) text += 7;
  char* action = strchr(text, '=');
  if (action == nullptr) return;
  *action++ = 0;
  rule.countdown = 0;
  rule.spent = false;
  if (char* n = strchr(text, ':')) {
    *n++ = 0;
    rule.countdown = atoi(n);
  }
  snprintf(rule.symbol, sizeof(rule.symbol), "%s", DriverName(text));
  const char* argument = strchr(action, '(');
  rule.value = argument != nullptr ? atoi(argument + 1) : 0;
  if (strncmp(action, "fail", 4) == 0) {
    rule.action = Action::kFail;
    if (rule.value == 0) rule.value = CUDA_ERROR_UNKNOWN;
  } else if (strncmp(action, "hang", 4) == 0) {
    rule.action = Action::kHang;
  } else if (strncmp(action, "hold", 4) == 0) {
    rule.action = Action::kHold;
  } else if (strncmp(action, "die", 3) == 0) {
    rule.action = Action::kDie;
  } else if (strncmp(action, "late", 4) == 0) {
    rule.action = Action::kLate;
  } else {
    dprintf(2, "softgpu: a fault rule has the unknown action %s\n", action);
    return;
  }
  ++g_count;
}

void Parse(const char* spec) {
  g_count = 0;
  char text[kMaxSpec];
  snprintf(text, sizeof(text), "%s", spec);
  char* rest = text;
  while (char* rule = strsep(&rest, ",\n")) {
    if (*rule != 0) ParseRule(rule);
  }
}

void ReadFile(Source* source) {
  char path[160];
  snprintf(path, sizeof(path), "%s%s", g_directory, source->suffix);
  struct stat s;
  if (stat(path, &s) != 0) return;
  uint64_t version = uint64_t(s.st_mtim.tv_sec) * 1'000'000'000 + uint64_t(s.st_mtim.tv_nsec) +
                     uint64_t(s.st_ino) * 31 + uint64_t(s.st_size);
  if (version == source->seen) return;
  source->seen = version;
  Fd file(open(path, O_RDONLY | O_CLOEXEC));
  char text[kMaxSpec] = {};
  if (file.valid() && read(file.get(), text, sizeof(text) - 1) >= 0) Parse(text);
}

void Refresh() {
  if (!g_environment_read) {
    g_environment_read = true;
    if (const char* spec = getenv("SOFTGPU_FAULT")) Parse(spec);
  }
  if (g_directory[0] != 0) {
    ReadFile(&g_all);
    ReadFile(&g_mine);
  }
}

// CRIU may stop the thread that holds the lock for a long time, so the wait is bounded. If the lock
// is not free by then, no fault is injected.
bool Lock() {
  for (int i = 0; i < 10000; ++i) {
    if (g_busy.exchange(1) == 0) return true;
    sched_yield();
  }
  return false;
}

bool Hit(Rule* rule) {
  if (rule->countdown == 0) return !rule->spent;
  if (--rule->countdown > 0) return false;
  rule->spent = true;
  return true;
}

// Creates `held.N` to show a test that the call has arrived. Then waits until the test removes
// `hold.N`.
void Hold(int number) {
  char held[160], hold[160];
  snprintf(held, sizeof(held), "%s/held.%d", g_directory, number);
  snprintf(hold, sizeof(hold), "%s/hold.%d", g_directory, number);
  const Fd created(open(held, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  while (access(hold, F_OK) == 0) usleep(1000);
}

CUresult Act(Action action, int value) {
  switch (action) {
    case Action::kHold:
      Hold(value);
      return CUDA_SUCCESS;
    case Action::kFail:
      return CUresult(value);
    case Action::kLate:
      t_late_ms = value;
      return CUDA_SUCCESS;
    case Action::kDie:
      kill(getpid(), SIGKILL);
      [[fallthrough]];
    case Action::kHang:
      if (value == 0) {
        for (;;) pause();
      }
      usleep(useconds_t(value) * 1000);
      return CUDA_SUCCESS;
  }
  return CUDA_SUCCESS;
}

}  // namespace

void SetDirectory(const char* directory) {
  if (!Lock()) return;
  snprintf(g_mine_suffix, sizeof(g_mine_suffix), "/fault.%d", getpid());
  g_mine.suffix = g_mine_suffix;
  snprintf(g_directory, sizeof(g_directory), "%s", directory);
  g_busy = 0;
}

int PendingLate() { return t_late_ms; }
int TakeLate() { return std::exchange(t_late_ms, 0); }

CUresult Check(const char* symbol, bool target) {
  // Each rule counts each call, even one that fails because of another rule.
  struct Hits {
    Action action;
    int value;
  } hits[kMaxRules];
  int count = 0;
  if (!Lock()) return CUDA_SUCCESS;
  Refresh();
  for (int i = 0; i < g_count; ++i) {
    Rule& rule = g_rules[i];
    if (rule.target != target) continue;
    if (strcmp(rule.symbol, "*") != 0 && strcmp(rule.symbol, symbol) != 0) continue;
    if (Hit(&rule)) hits[count++] = {rule.action, rule.value};
  }
  g_busy = 0;
  for (int i = 0; i < count; ++i) {
    if (CUresult r = Act(hits[i].action, hits[i].value); r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

}  // namespace softgpu::fault
