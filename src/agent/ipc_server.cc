#include "agent/ipc_server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/cuda/captures.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/ipc_answers.h"
#include "agent/cuda/ipc_events.h"
#include "agent/cuda/program_vmm.h"
#include "agent/descriptors.h"
#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/ipc_link.h"
#include "agent/thread.h"

namespace stasis::agent {
namespace {

using wire::Io;
using wire::IpcOutcome;
using wire::Type;

constexpr size_t kMaxPeers = 4096;

struct Peer {
  Watched socket;
  IpcUser user;  // region 0: it has nothing yet
  bool waits;    // for the gate to open
  bool away;     // it lets go for a suspend, and will ask for the same again
};

enum Service : uint32_t { kOff, kTrying, kOn };

// The thread's name tells other processes whether it has stopped listening for a while (IsAway).
constexpr int64_t kListenAgainNs = 200 * 1000000;
constexpr int64_t kAdmitAgainNs = 20 * 1000000;
constexpr int kLookMs = 1000;  // where no descriptor is left to wake it with

Mutex g_mutex;  // over the peers and
Vector<Peer> g_peers;
Vector<IpcUser> g_owed;  // those who are away
Watched g_listener;      // the thread's
std::atomic<uint32_t> g_started{0};
std::atomic<uint32_t> g_wanted{kOff};
std::atomic<uint32_t> g_service{kOff};
std::atomic<uint32_t> g_failures{0};  // so often it could not listen
bool g_has_listened = false;          // the thread's

void Settle(Service service) {
  g_service.store(service);
  FutexWake(&g_service);
}

bool Listen() {
  g_listener.Close();
  const wire::Uuid* name = OwnIpcName();
  int fd = name != nullptr ? ListenAt(*name) : -1;
  if (fd < 0 && name != nullptr && errno == EADDRINUSE) {
    // A copy of this process lives, as after a dump with --leave-running and a restore beside it.
    dprintf(2,
            "stasis: GPU memory that process %d has shared (CUDA IPC) cannot be opened again by "
            "its old handles: another copy of the process answers for them\n",
            int(getpid()));
    RenewIpcName();
    name = OwnIpcName();
    fd = name != nullptr ? ListenAt(*name) : -1;
  }
  static bool said = false;
  if (fd < 0) {
    if (!said) {
      dprintf(2, "stasis: process %d cannot share GPU memory (CUDA IPC): %s\n", int(getpid()),
              strerror(errno));
    }
    said = true;
    return false;
  }
  said = false;
  g_listener.Take(fd);
  NameThread(kIpcThreadName);
  return true;
}

// What it had open it has no longer. The caller holds the mutex.
void Leave(const IpcUser& user) {
  if (user.region != 0) EndUse(user.region);
}

// It has open what it was given. The caller holds the mutex.
void Enter(Peer* peer, const IpcUser& user) {
  size_t i = 0;
  while (i < g_owed.size() &&
         (g_owed[i].region != user.region || !SameName(g_owed[i].name, user.name))) {
    ++i;
  }
  if (i < g_owed.size()) {
    Leave(g_owed[i]);  // its use goes on as the one that has just begun
    g_owed.Erase(i);
  }
  Leave(peer->user);
  peer->user = user;
}

// Its connection is at its end. The caller holds the mutex.
void End(Peer* peer) {
  peer->socket.Close();
  // What it had open is its own until it comes back.
  const bool owed = peer->user.region != 0 && peer->away && g_owed.Push(peer->user);
  if (!owed) Leave(peer->user);
}

// Those who did not survive the suspend will not come back.
void ForgetOwedWhoEnded() {
  Lock lock(g_mutex);
  for (size_t i = 0; i < g_owed.size();) {
    if (kill(g_owed[i].pid, 0) == 0 || errno != ESRCH) {
      ++i;
      continue;
    }
    Leave(g_owed[i]);
    g_owed.Erase(i);
  }
}

bool OwesAnybody() {
  Lock lock(g_mutex);
  return g_owed.size() > 0;
}

void ForgetEnded() {
  ForgetOwedWhoEnded();
  DestroyUnusedHandles();
  NoteWhetherStillShared();
}

// It has nothing to wait for: the socket of who does not read is full, and it is sent away.
bool Reply(Peer* peer, wire::IpcAnswer* answer, int fd) {
  return wire::Send(peer->socket.fd, answer, Type::kIpcAnswer, sizeof(*answer), &fd,
                    fd >= 0 ? 1 : 0, 0) == Io::kOk;
}

bool AnswerReady(Peer* peer) {
  peer->waits = false;
  wire::IpcAnswer answer{};
  answer.outcome = IpcOutcome::kReady;
  return Reply(peer, &answer, -1);
}

// false: it goes. The caller holds the mutex.
bool Serve(Peer* peer) {
  static wire::Packet packet;  // of this thread
  int fds[wire::kMaxBatch];
  uint32_t count = 0;
  Io io = wire::Receive(peer->socket.fd, &packet, fds, &count, 0);
  if (io == Io::kTimeout) return true;
  if (io != Io::kOk) return false;
  wire::CloseAll(fds, count);
  if (packet.header.type == Type::kIpcAway) return peer->away = true;
  if (packet.header.type == Type::kIpcWait) {
    if (const uint64_t event = packet.ipc_request.piece; event != 0) {
      return AnswerWhenReached(peer->socket, event);
    }
    // Whoever opens the gate looks for those that wait afterwards, under the mutex.
    if (!gate::IsClosed()) return AnswerReady(peer);
    peer->waits = true;
    return true;
  }
  if (packet.header.type != Type::kIpcGive) return false;
  wire::IpcAnswer answer{};
  int fd = -1;
  GiveShared(packet.ipc_request, &answer, &fd);
  // Before it can know: the next that the program hears from it may be to free the memory.
  if (answer.outcome == IpcOutcome::kGiven) {
    Enter(peer, {packet.ipc_request.from, peer->user.pid, answer.region});
  }
  bool sent = Reply(peer, &answer, fd);
  if (fd >= 0) close(fd);
  return sent;
}

// All who share are suspended together, in any order: who is here yet goes away now.
void CloseAll() {
  g_listener.Close();
  Lock lock(g_mutex);
  for (Peer& peer : g_peers) {
    if (peer.socket.Connected()) peer.away = true;
    while (!peer.away && peer.socket.Holds() && Serve(&peer)) {
    }
    End(&peer);
  }
  g_peers.Clear();
}

// false: not now, though somebody waits.
bool Admit() {
  int32_t pid = 0;
  int fd = AdmitIpc(g_listener.fd, &pid);
  if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  Lock lock(g_mutex);
  Peer peer{};
  peer.user.pid = pid;
  if (g_peers.size() >= kMaxPeers || !g_peers.Reserve(g_peers.size() + 1)) {
    close(fd);
    return true;
  }
  peer.socket.Take(fd);
  g_peers.Push(peer);
  return true;
}

void* Run(void*) {
  gate::Exempt exempt;
  Relaxed relaxed;
  Vector<pollfd> items;
  for (;;) {
    if (g_wanted.load() == kOff) {
      if (g_has_listened) NameThread(kIpcAwayName);  // before nobody answers any more
      CloseAll();
      Settle(kOff);
      while (g_wanted.load() == kOff) FutexWait(&g_wanted, kOff);
    }
    Settle(kTrying);
    if (g_wanted.load() == kOff) continue;  // by who saw kOff still
    items.Clear();
    // The program may have closed it, as one that closes everything does. What fails is told to who
    // waits for it, and tried again: nobody calls for what was shared before a suspend.
    if ((!g_listener.Holds() && !Listen()) || !items.Reserve(g_peers.size() + 1)) {
      g_failures.fetch_add(1);
      Settle(kTrying);
      FutexWait(&g_wanted, kOn, kListenAgainNs);
      continue;
    }
    g_has_listened = true;
    Settle(kOn);
    items.Push({g_listener.fd, POLLIN, 0});
    for (const Peer& peer : g_peers) items.Push({peer.socket.fd, POLLIN, 0});
    const int ready = poll(items.begin(), items.size(), kLookMs);
    // Nothing tells of the end of somebody who is away.
    if (ready == 0 && !gate::IsClosed() && OwesAnybody()) ForgetEnded();
    if (ready <= 0 || g_wanted.load() == kOff) continue;
    MayShare();
    {
      Lock lock(g_mutex);
      // In the order in which they came: who has come back may be here, and its old connection
      // still to be ended.
      for (size_t i = 0, item = 1; item < items.size(); ++item) {
        Peer& peer = g_peers[i];
        if (items[item].revents == 0 || (peer.socket.Holds() && Serve(&peer))) {
          ++i;
          continue;
        }
        End(&peer);
        g_peers.Erase(i);
      }
    }
    MaySharePassed();
    // One that cannot be admitted for want of a descriptor would be reported for ever.
    if (items[0].revents != 0 && g_listener.Holds() && !Admit()) {
      FutexWait(&g_wanted, kOn, kAdmitAgainNs);
    }
  }
}

}  // namespace

bool ListenForIpc() {
  if (g_service.load() == kOn) return true;
  uint32_t no = 0;
  if (g_started.compare_exchange_strong(no, 1) && !StartThread(kIpcThreadName, Run, nullptr)) {
    g_started.store(0);
    return false;
  }
  const uint32_t failures = g_failures.load();
  g_wanted.store(kOn);
  FutexWake(&g_wanted);
  for (uint32_t now; (now = g_service.load()) != kOn;) {
    if (g_failures.load() != failures) return false;
    FutexWait(&g_service, now);
  }
  return true;
}

void PauseIpc() {
  if (g_started.load() == 0) return;
  g_wanted.store(kOff);
  FutexWake(&g_wanted);
  // It may stand in poll: a connection wakes it, whatever the program has done to its descriptors.
  for (uint32_t now; (now = g_service.load()) != kOff;) {
    if (const wire::Uuid* name = OwnIpcName()) KnockIpc(*name);
    FutexWait(&g_service, now, 10 * 1000000);
  }
  EndIpcAnswers();
}

void ResumeIpc() {
  if (g_started.load() != 0) ListenForIpc();
}

void AnswerIpcWaiters() {
  if (g_started.load() == 0) return;
  ForgetEnded();
  Lock lock(g_mutex);
  for (Peer& peer : g_peers) {
    if (peer.waits && peer.socket.Holds()) AnswerReady(&peer);
  }
}

bool ListIpcUsers(Vector<IpcUser>* out) {
  Lock lock(g_mutex);
  for (const Peer& peer : g_peers) {
    // One that has just closed it may not have been seen to go.
    if (peer.user.region == 0 || !peer.socket.Connected()) continue;
    if (!out->Push(peer.user)) return false;
  }
  return true;
}

bool HasIpcUsers() {
  Lock lock(g_mutex);
  if (g_owed.size() > 0) return true;
  for (const Peer& peer : g_peers) {
    if (peer.user.region != 0) return true;
  }
  return false;
}

void ResetIpcServerAfterFork() {
  g_listener.Close();
  for (Peer& peer : g_peers) peer.socket.Close();
  g_mutex.ResetAfterFork();
  g_peers.AbandonAfterFork();
  g_owed.AbandonAfterFork();
  g_started.store(0);
  g_wanted.store(kOff);
  g_service.store(kOff);
  g_has_listened = false;
  ResetIpcNameAfterFork();
}

}  // namespace stasis::agent
