#include "agent/blockers.h"

#include <stdio.h>
#include <string.h>

#include "agent/futex.h"

namespace stasis::agent {
namespace {

struct Kind {
  agent_protocol::Blocker bit;
  const char* text;
};
constexpr Kind kKinds[] = {
    {agent_protocol::kBlockerUnknownFunction, "unknown GPU functions"},
    {agent_protocol::kBlockerSharedVmm, "the program shares GPU memory with another process"},
    {agent_protocol::kBlockerLegacyIpc,
     "the program uses GPU memory of another process (CUDA IPC)"},
    {agent_protocol::kBlockerIpcEvent, "the program shares CUDA events with another process"},
    {agent_protocol::kBlockerUnseenThread, "the agent cannot see when the program's GPU calls end"},
};
constexpr size_t kCount = sizeof(kKinds) / sizeof(kKinds[0]);

Mutex g_mutex;
uint32_t g_notes[kCount];
char g_what[kCount][96];  // the first causes, as many as fit

}  // namespace

void NoteBlocker(agent_protocol::Blocker blocker, const char* what) {
  Lock lock(g_mutex);
  for (size_t i = 0; i < kCount; ++i) {
    if (kKinds[i].bit != blocker) continue;
    const size_t length = g_notes[i]++ == 0 ? 0 : strlen(g_what[i]);
    if (length > 0 && strstr(g_what[i], what) != nullptr) return;
    snprintf(g_what[i] + length, sizeof(g_what[i]) - length, "%s%s", length > 0 ? ", " : "", what);
  }
}

void ForgetBlocker(agent_protocol::Blocker blocker) {
  Lock lock(g_mutex);
  for (size_t i = 0; i < kCount; ++i) {
    if (kKinds[i].bit == blocker && g_notes[i] > 0) --g_notes[i];
  }
}

uint32_t Blockers(char* text, size_t size) {
  Lock lock(g_mutex);
  uint32_t bits = 0;
  text[0] = '\0';
  for (size_t i = 0; i < kCount; ++i) {
    if (g_notes[i] == 0) continue;
    if (bits == 0) snprintf(text, size, "%s: %s", kKinds[i].text, g_what[i]);
    bits |= kKinds[i].bit;
  }
  return bits;
}

void ResetBlockers() {
  g_mutex.ResetAfterFork();
  memset(g_notes, 0, sizeof(g_notes));
}

}  // namespace stasis::agent
