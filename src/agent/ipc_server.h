// The exporter's side of CUDA IPC: a thread and a socket to which the agents of other processes
// come for memory that the program has shared. Each connection is one handle that its importer has
// open, for as long as it stays: so both sides know of each other.
//
// Nothing of this is there while the memory is away: no connection and no name may be in CRIU's
// image. After a restore the same name is taken again, since programs hold handles that hold it.
#pragma once

#include <cstdint>

#include "agent/vector.h"
#include "wire/protocol.h"

namespace stasis::agent {

// Listens from now on; again and again does no harm. false: stderr says why not.
bool ListenForIpc();

// The memory goes: ends all connections, and is done when nobody listens any more. …
void PauseIpc();
// … It is here again: listens if it did before.
void ResumeIpc();
// The gate is open: those who came while it was closed may ask again, and what was kept for those
// who are not there any more is given back.
void AnswerIpcWaiters();

// An importer, and one handle that it has open.
struct IpcUser {
  wire::Uuid name;
  int32_t pid;
  uint64_t region;
};
// false: no memory for the list.
bool ListIpcUsers(Vector<IpcUser>* out);
// Whether there are any, or were just now: one that has gone may not have been seen to go.
bool HasIpcUsers();

void ResetIpcServerAfterFork();

}  // namespace stasis::agent
