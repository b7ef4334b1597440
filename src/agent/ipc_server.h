// The exporter's side of CUDA IPC: a thread and a listening socket, over which the agents of other
// processes ask for memory that the program has shared. Each connection represents one handle that
// an importer has open, and lasts as long as the handle is open. So each side notices when the
// other one ends.
//
// While the memory is away there is no connection and no listener, since neither may be in CRIU's
// image. After a restore the agent listens at the same name again, because the program's handles
// contain that name.
#pragma once

#include <cstdint>

#include "agent/futex.h"
#include "agent/vector.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

extern Mutex g_ipc_server_mutex;  // exported for forks (control.cc); taken before g_memory_mutex

// Starts to listen, if it does not listen yet. Returns false, with the reason on stderr, on an
// error.
bool ListenForIpc();

// Called before the memory is released: ends all connections and stops listening.
void PauseIpc();
// Called after the memory is mapped again: listens again if it listened before the suspend.
void ResumeIpc();
// Called after the gate has opened: tells waiting importers to ask again, and frees memory that was
// kept for processes which have ended.
void AnswerIpcWaiters();

// One handle that another process (an importer) has open.
struct IpcUser {
  agent_protocol::Uuid name;
  int32_t pid;
  uint64_t region;
};
// Lists the importers. Returns false if host memory for the list cannot be allocated.
bool ListIpcUsers(Vector<IpcUser>* out);
// Returns true if there are importers. An importer that has just disconnected may still be counted.
bool HasIpcUsers();

void ResetIpcServerAfterFork();

}  // namespace stasis::agent
