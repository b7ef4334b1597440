#include "agent/ipc_server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/control.h"
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

Mutex g_ipc_server_mutex;  // guards g_peers and g_owed

namespace {

using agent_protocol::Io;
using agent_protocol::IpcOutcome;
using agent_protocol::Type;

constexpr size_t kMaxPeers = 4096;

struct Peer {
  Watched socket;
  IpcUser user;  // region 0: the peer has opened nothing yet
  bool waits;    // for the gate to open
  bool away;     // the peer disconnects for a suspend and will ask for the same memory again
};

enum Service : uint32_t { kOff, kTrying, kOn };

constexpr int64_t kListenAgainNs = 200 * 1000000;
constexpr int64_t kAdmitAgainNs = 20 * 1000000;
constexpr int kLookMs = 1000;  // poll timeout, in case no descriptor is left to wake the thread

Vector<Peer> g_peers;
Vector<IpcUser> g_owed;  // importers that are away
Watched g_listener;      // used by the thread only
std::atomic<uint32_t> g_started{0};
std::atomic<uint32_t> g_wanted{kOff};
std::atomic<uint32_t> g_service{kOff};
std::atomic<uint32_t> g_failures{0};  // counts failures to listen
bool g_has_listened = false;          // used by the thread only

void SetService(Service service) {
  g_service.store(service);
  FutexWake(&g_service);
}

bool Listen() {
  g_listener.Close();
  const agent_protocol::Uuid* name = OwnIpcName();
  int fd = name != nullptr ? ListenAt(*name) : -1;
  if (fd < 0 && name != nullptr && errno == EADDRINUSE) {
    // The address is in use by a copy of this process, for example after a dump with
    // --leave-running and a restore.
    dprintf(2,
            "stasis: the handles of GPU memory that process %d has shared (CUDA IPC) can no longer "
            "be opened: another copy of the process is listening at their address\n",
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

// Ends the importer's use of its memory. The caller holds the mutex.
void Leave(const IpcUser& user) {
  if (user.region != 0) EndUse(user.region);
}

// Notes that the peer has opened the memory that it was given. The caller holds the mutex.
void Enter(Peer* peer, const IpcUser& user) {
  const size_t i = g_owed.FindIf([&](const IpcUser& owed) {
    return owed.region == user.region && SameName(owed.name, user.name);
  });
  if (i < g_owed.size()) {
    Leave(g_owed[i]);  // the use that has just begun replaces it
    g_owed.Erase(i);
  }
  Leave(peer->user);
  peer->user = user;
}

// Handles the end of a connection. The caller holds the mutex.
void End(Peer* peer) {
  peer->socket.Close();
  // The memory of a suspended peer is kept until the peer asks for it again.
  const bool owed = peer->user.region != 0 && peer->away &&
                    g_owed.Push(peer->user);  // Admit has reserved the room
  if (!owed) Leave(peer->user);
}

// Drops importers whose processes did not survive the suspend.
void DropOwedThatEnded() {
  Lock lock(g_ipc_server_mutex);
  g_owed.EraseIf([](const IpcUser& owed) {
    if (kill(owed.pid, 0) == 0 || errno != ESRCH) return false;
    Leave(owed);
    return true;
  });
}

bool HasOwed() {
  Lock lock(g_ipc_server_mutex);
  return g_owed.size() > 0;
}

void ForgetEnded() {
  DropOwedThatEnded();
  DestroyUnusedHandles();
  NoteWhetherStillShared();
}

// Does not block: if a peer does not read its answers, its socket fills up and the peer is
// disconnected.
bool Reply(Peer* peer, agent_protocol::IpcAnswer* answer, int fd) {
  return agent_protocol::Send(peer->socket.fd, answer, Type::kIpcAnswer, sizeof(*answer), &fd,
                              fd >= 0 ? 1 : 0, 0) == Io::kOk;
}

bool AnswerReady(Peer* peer) {
  peer->waits = false;
  agent_protocol::IpcAnswer answer{};
  answer.outcome = IpcOutcome::kReady;
  return Reply(peer, &answer, -1);
}

// Handles one packet. Returns false if the peer is to be disconnected. The caller holds the mutex.
bool Serve(Peer* peer) {
  static agent_protocol::Packet packet;  // used by this thread only
  int fds[agent_protocol::kMaxBatch];
  uint32_t count = 0;
  Io io = agent_protocol::Receive(peer->socket.fd, &packet, fds, &count, 0);
  if (io == Io::kTimeout) return true;
  if (io != Io::kOk) return false;
  agent_protocol::CloseAll(fds, count);
  if (packet.header.type == Type::kIpcAway) return peer->away = true;
  if (packet.header.type == Type::kIpcWait) {
    if (const uint64_t event = packet.ipc_request.piece; event != 0) {
      return AnswerWhenReached(peer->socket, event);
    }
    // The peer waits for its answer. The control thread answers waiting peers after it has opened
    // the gate, and holds the mutex meanwhile.
    if (!gate::IsClosed()) return AnswerReady(peer);
    peer->waits = true;
    return true;
  }
  if (packet.header.type != Type::kIpcGive) return false;
  agent_protocol::IpcAnswer answer{};
  int fd = -1;
  GiveShared(packet.ipc_request, &answer, &fd);
  // Note the use before the reply, because after it the importer may tell this program to free the
  // memory.
  if (answer.outcome == IpcOutcome::kGiven) {
    Enter(peer, {packet.ipc_request.from, peer->user.pid, answer.region});
  }
  bool sent = Reply(peer, &answer, fd);
  if (fd >= 0) close(fd);
  return sent;
}

// Processes that share memory are suspended together, in any order. So each connected peer is about
// to be suspended too, and counts as away.
void CloseAll() {
  g_listener.Close();
  Lock lock(g_ipc_server_mutex);
  for (Peer& peer : g_peers) {
    if (peer.socket.Connected()) peer.away = true;
    while (!peer.away && peer.socket.Holds() && Serve(&peer)) {
    }
    End(&peer);
  }
  g_peers.Clear();
}

// Admits the next connection. Returns false if a connection is waiting but cannot be admitted now.
bool Admit() {
  int32_t pid = 0;
  int fd = AdmitIpc(g_listener.fd, &pid);
  if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  Lock lock(g_ipc_server_mutex);
  Peer peer{};
  peer.user.pid = pid;
  // Reserves room in g_owed for every peer, so that a suspend can record all of them.
  if (g_peers.size() >= kMaxPeers || !g_peers.Reserve(g_peers.size() + 1) ||
      !g_owed.Reserve(g_owed.size() + g_peers.size() + 1)) {
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
      if (g_has_listened) NameThread(kIpcAwayName);  // before it stops listening: see IsAway
      CloseAll();
      SetService(kOff);
      while (g_wanted.load() == kOff) FutexWait(&g_wanted, kOff);
    }
    SetService(kTrying);
    if (g_wanted.load() == kOff) continue;  // PauseIpc may have seen the old kOff and returned
    items.Clear();
    // The program may have closed the listener together with all other descriptors. If the thread
    // cannot listen again, ListenForIpc reports the failure, and the thread retries by itself,
    // because after a suspend the program makes no call that would start a retry.
    if ((!g_listener.Holds() && !Listen()) || !items.Reserve(g_peers.size() + 1)) {
      g_failures.fetch_add(1);
      SetService(kTrying);
      FutexWait(&g_wanted, kOn, kListenAgainNs);
      continue;
    }
    g_has_listened = true;
    SetService(kOn);
    items.Push({g_listener.fd, POLLIN, 0});
    for (const Peer& peer : g_peers) items.Push({peer.socket.fd, POLLIN, 0});
    const int ready = poll(items.begin(), items.size(), kLookMs);
    // Look for suspended importers that have ended, because no event reports their end.
    if (ready == 0 && !gate::IsClosed() && HasOwed()) ForgetEnded();
    if (ready <= 0 || g_wanted.load() == kOff) continue;
    MayShare();
    {
      Lock lock(g_ipc_server_mutex);
      // Serve the peers in the order of admission: an old connection must end before the new one of
      // the same peer is served, and one poll may report both.
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
    // If the connection cannot be admitted for lack of a descriptor, it stays pending and poll
    // would report it again at once, so wait a moment.
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
  // The thread may be in poll: a connection wakes it, even if the program has closed descriptors.
  for (uint32_t now; (now = g_service.load()) != kOff;) {
    if (const agent_protocol::Uuid* name = OwnIpcName()) WakeIpc(*name);
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
  Lock lock(g_ipc_server_mutex);
  for (Peer& peer : g_peers) {
    if (peer.waits && peer.socket.Holds()) AnswerReady(&peer);
  }
}

bool ListIpcUsers(Vector<IpcUser>* out) {
  Lock lock(g_ipc_server_mutex);
  for (const Peer& peer : g_peers) {
    // A peer that has just disconnected may not have been handled yet.
    if (peer.user.region == 0 || !peer.socket.Connected()) continue;
    if (!out->Push(peer.user)) return false;
  }
  return true;
}

bool HasIpcUsers() {
  Lock lock(g_ipc_server_mutex);
  if (g_owed.size() > 0) return true;
  for (const Peer& peer : g_peers) {
    if (peer.user.region != 0) return true;
  }
  return false;
}

void ResetIpcServerAfterFork() {
  g_listener.Close();
  if (t_tables_are_whole) {
    for (Peer& peer : g_peers) peer.socket.Close();
  }
  g_ipc_server_mutex.ResetAfterFork();
  g_peers.AbandonAfterFork();
  g_owed.AbandonAfterFork();
  g_started.store(0);
  g_wanted.store(kOff);
  g_service.store(kOff);
  g_has_listened = false;
  ResetIpcNameAfterFork();
}

}  // namespace stasis::agent
