#include "agent/cuda/ipc_answers.h"

#include <poll.h>
#include <unistd.h>

#include "agent/control.h"
#include "agent/cuda/captures.h"
#include "agent/cuda/ipc_events.h"
#include "agent/thread.h"
#include "agent/vector.h"
#include "agent_protocol/packet.h"

namespace stasis::agent {

Mutex g_ipc_answers_mutex;

namespace {

using agent_protocol::IpcOutcome;

constexpr size_t kMostAsked = 4096;

// An importer that waits for an event of this process to complete.
struct Asked {
  Watched socket;
  uint64_t id;
};
Vector<Asked> g_asked;  // guarded by g_ipc_answers_mutex; only AnswerThread removes entries
std::atomic<uint32_t> g_answers{0};  // the number of entries
std::atomic<uint32_t> g_started{0};

bool HasGone(const Watched& socket) {
  pollfd one{socket.fd, POLLIN, 0};
  if (!socket.Holds()) return true;
  return poll(&one, 1, 0) > 0 && (one.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

// Returns false if the event has not completed and the other agent is still connected.
bool GiveAnswer(Asked one) {
  agent_protocol::IpcAnswer answer{};
  answer.outcome = LookAtEvent(one.id);
  if (answer.outcome == IpcOutcome::kNotNow && !HasGone(one.socket)) return false;
  if (answer.outcome != IpcOutcome::kNotNow && one.socket.Holds()) {
    agent_protocol::Send(one.socket.fd, &answer, agent_protocol::Type::kIpcAnswer, sizeof(answer),
                         nullptr, 0, 0);
  }
  one.socket.Close();
  return true;
}

// Looks at all entries once and returns whether any was answered. New entries are appended at the
// end.
bool LookAtAll() {
  size_t left = 0;
  {
    Lock lock(g_ipc_answers_mutex);
    left = g_asked.size();
  }
  bool any = false;
  while (left-- > 0) {
    Asked one;
    {
      Lock lock(g_ipc_answers_mutex);
      one = g_asked[0];  // stays in the table, so that a forked child closes its socket
    }
    const bool answered = GiveAnswer(one);
    {
      Lock lock(g_ipc_answers_mutex);
      g_asked.Erase(0);
      if (!answered) g_asked.Push(one);  // there is room
    }
    if (!answered) continue;
    any = true;
    g_answers.fetch_sub(1);
    FutexWake(&g_answers);
  }
  return any;
}

// One thread serves all entries and cannot block on a single event, so it polls: often at first,
// then with longer pauses.
void* AnswerThread(void*) {
  Relaxed relaxed;
  constexpr int64_t kShortestNs = 50'000, kLongestNs = 2'000'000;
  int64_t pause = kShortestNs;
  for (;;) {
    if (g_answers.load() == 0) {
      FutexWait(&g_answers, 0);
      pause = kShortestNs;
      continue;
    }
    if (LookAtAll()) pause = kShortestNs;
    const uint32_t left = g_answers.load();
    if (left != 0) FutexWait(&g_answers, left, pause);  // or until another entry arrives
    if (pause < kLongestNs) pause += pause / 8;
  }
}

}  // namespace

bool AnswerWhenReached(const Watched& socket, uint64_t id) {
  uint32_t no = 0;
  if (g_started.compare_exchange_strong(no, 1) &&
      !StartThread("stasis-ipc-wait", AnswerThread, nullptr)) {
    g_started.store(0);
    return false;
  }
  // The mark belongs to the socket, so the duplicate carries it too.
  Asked one{{KeepHigh(socket.fd), socket.mark}, id};
  if (one.socket.fd < 0) return false;
  {
    Lock lock(g_ipc_answers_mutex);
    // Increase the count before the entry is added, because the thread may answer and remove the
    // entry at once.
    if (g_answers.load() < kMostAsked && g_asked.Reserve(g_answers.load() + 1)) {
      g_answers.fetch_add(1);
      g_asked.Push(one);
      FutexWake(&g_answers);
      return true;
    }
  }
  one.socket.Close();
  return false;
}

void EndIpcAnswers() {
  for (uint32_t left; (left = g_answers.load()) != 0;) FutexWait(&g_answers, left);
}

// SAFETY: only for a forked child, which has no other threads.
void ResetIpcAnswers() {
  if (t_tables_are_whole) {
    for (Asked& one : g_asked) one.socket.Close();
  }
  g_ipc_answers_mutex.ResetAfterFork();
  g_asked.AbandonAfterFork();
  g_answers.store(0);
  g_started.store(0);
}

}  // namespace stasis::agent
