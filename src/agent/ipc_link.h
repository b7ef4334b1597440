// The connection between two agents: a socket in the abstract namespace. Its address has two parts:
//   - a random name. It is in the handle that the program passes on, and is restored from an image.
//   - the pid namespace of the process. It is in neither the handle nor the image, but each process
//     can read its own. Copies of one process have the same name and pid, so they are in different
//     pid namespaces, and each copy has its own address. Processes that were copied together share
//     a pid namespace, so they compute the same addresses.
// Both ends check the process id and the user of the other one.
#pragma once

#include "agent/descriptors.h"
#include "agent_protocol/packet.h"
#include "agent_protocol/protocol.h"

namespace stasis::agent {

// The address at which an agent listens, and the pid of its process.
struct IpcPlace {
  agent_protocol::Uuid name;
  int32_t pid;
};

inline bool SameName(const agent_protocol::Uuid& a, const agent_protocol::Uuid& b) {
  return __builtin_memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
}

// Returns the name of this process, which the first call creates, or null if the kernel returns no
// random bytes.
const agent_protocol::Uuid* OwnIpcName();
// Makes a new name for this process. Call it when a copy of this process listens at the old name.
void RenewIpcName();
void ResetIpcNameAfterFork();
// Returns true if this process has a name already.
bool HasIpcName();

// Returns a socket that listens at `name` in this pid namespace, or -1 with errno set.
int ListenAt(const agent_protocol::Uuid& name);
// Returns the next connection, with the peer's pid in *pid. Returns -1 if there is none, or if the
// peer was rejected, because it belongs to another user or has no pid in this pid namespace.
int AdmitIpc(int listener, int32_t* pid);

// Returns a connection to the agent at `place`, or -1 with the reason in *why.
int ConnectIpc(const IpcPlace& place, const char** why);
// Wakes the thread that listens at `name` by connecting to it.
void WakeIpc(const agent_protocol::Uuid& name);

// Names of the listening thread: kIpcThreadName while it listens, kIpcAwayName while the memory of
// its program is away.
inline constexpr char kIpcThreadName[] = "stasis-ipc";
inline constexpr char kIpcAwayName[] = "stasis-ipc-away";
// Returns true if the program at `place` is suspended: its agent is not listening, but will listen
// again. The agent publishes this in the name of its thread, which any process can read without a
// socket.
bool IsAway(const IpcPlace& place);
// After a failed connection: waits, outside of the gate, while the owner is away. Returns true if
// the caller should ask again. It returns true once even for an owner that was not away, since the
// owner may have been resumed between the two checks; `*again` must be true at first.
bool AwaitOwner(const IpcPlace& owner, bool* again);
// Tells an owner that this process closes the connection for a suspend, and will ask for the same
// memory afterwards.
void SayAway(const Watched& link);

// Sends a request and reads the answer. With kGiven, *fd is a descriptor that the caller must
// close; else it is -1. Returns false with the reason in *why.
bool AskIpc(int socket, agent_protocol::Type type, agent_protocol::IpcRequest request,
            int timeout_ms, agent_protocol::IpcAnswer* answer, int* fd, const char** why);

}  // namespace stasis::agent
