// How two agents reach each other: a socket in the abstract namespace whose name is random, in the
// handle that the program hands on. Both ends look at whose process the other one is.
#pragma once

#include "agent/descriptors.h"
#include "wire/packet.h"
#include "wire/protocol.h"

namespace stasis::agent {

// Where an agent listens, by which process.
struct IpcPlace {
  wire::Uuid name;
  int32_t pid;
};

inline bool SameName(const wire::Uuid& a, const wire::Uuid& b) {
  return __builtin_memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
}

// The name of this process, made when it is first asked for. null: the kernel has no random bytes.
const wire::Uuid* OwnIpcName();
// Another one: somebody else listens there, a copy of this process at that.
void RenewIpcName();
void ResetIpcNameAfterFork();
// Whether it has one already.
bool HasIpcName();

// A listening socket of that name; -1: errno says why.
int ListenAt(const wire::Uuid& name);
// The next connection; -1: none, or of another user, who was sent away. *pid: whose it is.
int AdmitIpc(int listener, int32_t* pid);

// A connection to the agent there; -1 with the reason in words.
int ConnectIpc(const IpcPlace& place, const char** why);
// Wakes the thread that listens there.
void KnockIpc(const wire::Uuid& name);

// Names of the thread that listens: while it does, and while its program's memory is away.
inline constexpr char kIpcThreadName[] = "stasis-ipc";
inline constexpr char kIpcAwayName[] = "stasis-ipc-away";
// Nobody listens there, and will again: the program is suspended. Nothing of ours is there to be
// asked then but what the kernel tells everybody, the name of a thread.
bool IsAway(const IpcPlace& place);
// For whoever could not reach an owner: waits, outside of the gate, until it is not away any more.
// true: it is worth asking again. That is so once, too, of one that was not away: it may have come
// back between the two looks. `again` begins as true.
bool AwaitOwner(const IpcPlace& owner, bool* again);
// Tells an owner that this end closes for a suspend, and what is open is wanted back afterwards.
void SayAway(const Watched& link);

// Asks and reads the answer, of kGiven with its descriptor, which is the caller's. false: *why.
bool AskIpc(int socket, wire::Type type, wire::IpcRequest request, int timeout_ms,
            wire::IpcAnswer* answer, int* fd, const char** why);

}  // namespace stasis::agent
