// CUDA IPC on memory of ours: what a program gives to another process names this process and an
// allocation of it (cuIpcGetMemHandle: ipc_memory.cc) or a handle (cuMemExportToShareableHandle:
// vmm_sharing.cc), and the agent of whoever opens it asks ours for the memory (ipc_server.h).
//
// An import is a region like others (memory.h) or a handle of the program's like others
// (program_vmm.h), but that another process made it. A region is mapped whole; the program sees the
// allocations of it that it has opened.
// At a suspend imports are let go, and the memory travels once, with its owner; then each importer
// asks the owner's agent for it again.
//
// Threads: as memory.h, under the same mutex, which is not held while another process is asked.
#pragma once

#include "agent/cuda/memory.h"
#include "agent/ipc_link.h"

namespace stasis::agent {

enum IpcKind : char { kIpcMemory = 'M', kIpcEvent = 'E', kIpcProgramHandle = 'H' };

// What is in the 64 bytes of a handle, or of an exported file. Whoever opens one got it from
// anybody: nothing in it is believed but whom to ask, and what comes back is checked again.
struct IpcHandle {
  char magic[7];
  IpcKind kind;
  IpcPlace owner;
  uint32_t version;
  uint64_t id;  // of an allocation (Block::id), an event, or a handle (ProgramHandle::id)
  uint8_t zero[24];
};
static_assert(sizeof(IpcHandle) == 64);

// false: it is none of ours, but the driver's.
bool ReadIpcHandle(IpcKind kind, const char (&bytes)[64], IpcHandle* out);
CUresult MakeIpcHandle(IpcKind kind, uint64_t id, char (&bytes)[64]);
bool IsSound(const IpcHandle& handle);
bool IsOwn(const IpcHandle& handle);
void SayCannotOpen(int32_t owner, const char* why);

struct Import {
  IpcPlace from;
  uint64_t region;  // its id there
  CUdevice reader;  // on which it was opened; may be another than the memory is on
  Watched link;     // stays as long as we hold it
};

// ---- the owner's side

// What is asked for, if it can be given now; *fd is the caller's. On the server's thread. With
// kGiven a use of it has begun (EndUse).
void GiveShared(const wire::IpcRequest& request, wire::IpcAnswer* answer, int* fd);

// ---- the importer's side

// Says in the header that we share memory, while it may come to that; then whether we do. Never
// under a mutex.
void MayShare();
void MaySharePassed();
// For the end of somebody who shared: takes it back, never says it anew.
void NoteWhetherStillShared();
struct LookWhetherWeShare {
  LookWhetherWeShare() { MayShare(); }
  ~LookWhetherWeShare() { MaySharePassed(); }
  LookWhetherWeShare(const LookWhetherWeShare&) = delete;
};

// What an owner's agent has given; all of it is closed with this. Never made or ended under a
// mutex.
struct IpcGiven {
  wire::IpcAnswer answer;
  int socket = -1;
  int fd = -1;
  bool open = false;
  IpcGiven() { Begin(); }
  ~IpcGiven() { End(); }
  IpcGiven(const IpcGiven&) = delete;
  void Begin();
  void End();
};
// Asks the owner of what the handle names, and waits where it is being suspended; not under the
// mutex. When it fails for lack of an owner, stderr says why.
CUresult AskPatiently(const IpcHandle& handle, IpcGiven* given);

CUresult GiveImportAccess(const Region* region);
void FreeImport(Import* import);

// For the control thread, while the gate is closed.
CUresult ReleaseImports();
// Whether the owners of all that is here know that we have it, and so would keep it for us while it
// is away; false: a sentence about one that does not.
bool ImportsAreKnown(char* text, size_t size);
// Maps again what was released. Stops at the first that fails, with a sentence about it; may be
// tried again.
bool RejoinImports(char* text, size_t size);

// ---- both

// Who shares memory with us, for the account.
void DescribeIpc(wire::HelloReply* reply);
void ResetIpc();

}  // namespace stasis::agent
