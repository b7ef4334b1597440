#include "agent/watch.h"

#include <poll.h>
#include <stdio.h>

#include <atomic>

#include "agent/control.h"
#include "agent/descriptors.h"
#include "agent/gate.h"
#include "agent/requests.h"
#include "agent/room.h"
#include "agent_protocol/packet.h"

namespace stasis::agent {
namespace {

using agent_protocol::Io;
using agent_protocol::Type;
using agent_protocol::Wants;

Watched g_watcher;
// The last rejected watcher. If its socket were closed at once, it would lose the answer.
Watched g_rejected;
Wants g_told;            // what the watcher was last told
bool g_due = false;      // the watcher must be told even if nothing has changed
bool g_full = false;     // its socket has no room
bool g_returns = false;  // it has said kLeave

// Read by other threads.
std::atomic<bool> g_connected{false};
std::atomic<bool> g_news{false};  // the control thread was woken, and has not looked yet

Wants WantsNow() {
  Wants wants{};
  wants.thread_at_gate = MemoryIsAway() && gate::HasBlockedThread() ? 1 : 0;
  const gate::Use use = gate::UseNow();
  wants.in_call = use.in_call ? 1 : 0;
  wants.calls = use.calls;
  room::Waiting waiting;
  if (room::First(&waiting)) {
    wants.number = waiting.number;
    wants.bytes = waiting.request.bytes;
    wants.attempts = waiting.attempts;
    wants.device = waiting.request.device;
  }
  return wants;
}

void EndWatcher() {
  if (g_connected.exchange(false)) room::WatcherLeft(g_returns);
  g_due = g_full = g_returns = false;
  g_rejected.Close();
  g_watcher.Close();  // last, because its client waits for this close
}

}  // namespace

bool IsWatcher(int socket) { return agent_protocol::FirstType(socket) == Type::kWatch; }

void AdmitWatcher(int socket) {
  if (!g_watcher.Holds()) {
    EndWatcher();            // the program may have closed the watcher's descriptor
    g_watcher.Take(socket);  // its kWatch is still to be read
    room::WatcherCame();
    // Set before TellWatcher looks: a change after its look then wakes this thread.
    g_connected.store(true);
    return;
  }
  agent_protocol::Reply reply{};
  reply.outcome = agent_protocol::Outcome::kBusy;
  snprintf(reply.text, sizeof(reply.text), "another watcher is connected");
  agent_protocol::Send(socket, &reply, Type::kReply, sizeof(reply), nullptr, 0, 0);
  g_rejected.Close();
  g_rejected.Take(socket);
}

int WatcherSocket() { return g_watcher.fd; }

short WatcherEvents() { return short(POLLIN | (g_full ? POLLOUT : 0)); }

void HearWatcher() {
  if (!g_watcher.Holds()) return EndWatcher();
  g_full = false;
  static agent_protocol::Packet packet;  // static, because some programs have small stacks
  int fds[agent_protocol::kMaxBatch];
  uint32_t count = 0;
  const Io io = agent_protocol::Receive(g_watcher.fd, &packet, fds, &count, 0);
  if (io == Io::kTimeout) return;
  if (io != Io::kOk) return EndWatcher();
  switch (packet.header.type) {
    case Type::kWatch:
      room::SetLongestWait(int64_t(packet.watch.longest_wait_ms) * 1000000);
      room::SetSpare(uint64_t(packet.watch.spare_mib) << 20);
      g_due = true;
      break;
    case Type::kAskUse:
      g_due = true;
      break;
    case Type::kLeave:
      g_returns = true;
      break;
    case Type::kRoom:
      room::Answer(packet.room.number, packet.room.try_again != 0);
      break;
    default:
      agent_protocol::CloseAll(fds, count);
      EndWatcher();
  }
}

void TellWatcher() {
  if (g_watcher.fd < 0) return;
  if (!g_watcher.Holds()) return EndWatcher();
  if (g_full) return;
  g_news.store(false);  // before the look
  Wants wants = WantsNow();
  if (!g_due && wants.thread_at_gate == g_told.thread_at_gate && wants.number == g_told.number) {
    return;
  }
  switch (agent_protocol::Send(g_watcher.fd, &wants, Type::kWants, sizeof(wants), nullptr, 0, 0)) {
    case Io::kOk:
      g_told = wants;
      g_due = false;
      break;
    case Io::kTimeout:
      g_full = true;
      break;
    default:
      EndWatcher();
  }
}

void NoteNews() {
  if (g_connected.load() && !g_news.exchange(true)) WakeControl();
}

void gate::ThreadBlocks() { NoteNews(); }

void ResetWatcher() {
  g_connected.store(false);
  g_news.store(false);
  g_due = g_full = g_returns = false;
  g_watcher.Close();
  g_rejected.Close();
  room::ResetAfterFork();
}

}  // namespace stasis::agent
