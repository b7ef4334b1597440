// CUDA IPC on memory of the agent. A shared handle names this process and one of its allocations
// (cuIpcGetMemHandle: ipc_memory.cc) or one of its handles (cuMemExportToShareableHandle:
// vmm_sharing.cc). The importer's agent asks the owner's agent for the memory (ipc_server.h).
//
// An import is a region (memory.h) or a handle of the program (program_vmm.h) whose memory another
// process allocated. A region is mapped whole; the program sees the allocations that it has opened.
// A suspend releases imports. The memory is saved once, by its owner, and then each importer asks
// the owner's agent for it again.
//
// Threads: the rules and the mutex of memory.h. The mutex is not held while another process is
// asked.
#pragma once

#include "agent/cuda/memory.h"
#include "agent/ipc_link.h"

namespace stasis::agent {

enum IpcKind : char { kIpcMemory = 'M', kIpcEvent = 'E', kIpcProgramHandle = 'H' };

// The 64 bytes of a handle or of an exported file. A handle may come from any process, so the
// importer uses it only to find the owner, and checks the owner's answer.
struct IpcHandle {
  char magic[7];
  IpcKind kind;
  IpcPlace owner;
  uint32_t version;
  uint64_t id;  // the id of an allocation (Block), an event, or a handle (ProgramHandle)
  uint8_t zero[24];
};
static_assert(sizeof(IpcHandle) == 64);

// Reads a handle of the agent. Returns false if the handle is the driver's.
bool ReadIpcHandle(IpcKind kind, const char (&bytes)[64], IpcHandle* out);
CUresult MakeIpcHandle(IpcKind kind, uint64_t id, char (&bytes)[64]);
bool IsSound(const IpcHandle& handle);
bool IsOwn(const IpcHandle& handle);
void SayCannotOpen(int32_t owner, const char* why);

struct Import {
  IpcPlace from;
  uint64_t region;  // its id in the owner's process
  CUdevice reader;  // the device on which it was opened; the memory may be on another one
  Watched link;     // connected as long as the import is held
};

// The owner of the memory calls the following functions.

// Answers a request for memory, on the server's thread. If the answer is kGiven, the caller must
// close *fd, and must call EndUse when the importer no longer uses the memory.
void GiveShared(const agent_protocol::IpcRequest& request, agent_protocol::IpcAnswer* answer,
                int* fd);

// The importer calls the following functions.

// MayShare sets the header's bit for shared memory while memory may become shared; MaySharePassed
// afterwards clears the bit if no memory is shared. The caller must not hold a mutex.
void MayShare();
void MaySharePassed();
// Called when a process that shared memory has ended: clears the bit if no memory is shared any
// more.
void NoteWhetherStillShared();
struct ScopedMayShare {
  ScopedMayShare() { MayShare(); }
  ~ScopedMayShare() { MaySharePassed(); }
  ScopedMayShare(const ScopedMayShare&) = delete;
};

// An owner's answer, with its socket and descriptor, which the destructor closes. The caller must
// not hold a mutex when it is constructed or destroyed.
struct IpcGiven {
  agent_protocol::IpcAnswer answer;
  int socket = -1;
  int fd = -1;
  bool open = false;
  IpcGiven() { Begin(); }
  ~IpcGiven() { End(); }
  IpcGiven(const IpcGiven&) = delete;
  void Begin();
  void End();
};
// Asks the owner for the memory that the handle names, and waits while the owner is suspended. The
// caller must not hold a mutex. If the owner cannot be reached, prints the reason on stderr.
CUresult AskPatiently(const IpcHandle& handle, IpcGiven* given);

CUresult GiveImportAccess(const Region* region);
void FreeImport(Import* import);

// Releases all imports. This function and the next two are only for the control thread, while the
// gate is closed.
CUresult ReleaseImports();
// Checks that each import is connected to its owner's agent, which then keeps the memory during the
// suspend; reconnects if necessary. Returns false with a sentence about the first import that
// cannot be connected.
bool ImportsAreKnown(char* text, size_t size);
// Maps the released imports again. Returns false with a sentence about the first error; may be
// called again.
bool RejoinImports(char* text, size_t size);

// Owner and importer call the following functions.

// Fills in the processes that share memory with this one.
void DescribeIpc(agent_protocol::HelloReply* reply);
void ResetIpc();

}  // namespace stasis::agent
