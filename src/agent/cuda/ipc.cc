#include "agent/cuda/ipc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/cuda/ipc_events.h"
#include "agent/cuda/item.h"
#include "agent/gate.h"
#include "agent/header.h"
#include "agent/ipc_server.h"

namespace stasis::agent {

namespace {

constexpr char kMagic[7] = {'S', 't', 'a', 's', 'i', 's', 1};

}  // namespace

bool ReadIpcHandle(IpcKind kind, const char (&bytes)[64], IpcHandle* out) {
  memcpy(out, bytes, sizeof(*out));
  return memcmp(out->magic, kMagic, sizeof(kMagic)) == 0 && out->kind == kind;
}

CUresult MakeIpcHandle(IpcKind kind, uint64_t id, char (&bytes)[64]) {
  if (!ListenForIpc()) return CUDA_ERROR_OPERATING_SYSTEM;
  IpcHandle handle{};
  memcpy(handle.magic, kMagic, sizeof(kMagic));
  handle.kind = kind;
  handle.owner = {*OwnIpcName(), getpid()};
  handle.version = agent_protocol::kVersion;
  handle.id = id;
  memcpy(bytes, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}

bool IsSound(const IpcHandle& handle) {
  if (handle.version == agent_protocol::kVersion && handle.id != 0) return true;
  SayCannotOpen(handle.owner.pid, "the handle is damaged, or another version of the agent made it");
  return false;
}

bool IsOwn(const IpcHandle& handle) {
  return HasIpcName() && SameName(*OwnIpcName(), handle.owner.name);
}

void SayCannotOpen(int32_t owner, const char* why) {
  dprintf(2,
          "stasis: process %d cannot open shared memory or events of process %d (CUDA IPC): %s\n"
          "stasis: (a program without the stasis agent cannot open it at all; start both programs "
          "with `stasis run --no-agent` to share memory without the agent)\n",
          int(getpid()), int(owner), why);
}

namespace {

using agent_protocol::IpcOutcome;

constexpr int kAnswerTimeoutMs = 10 * 1000;
constexpr uint64_t kMostBytes = uint64_t(1) << 44;

// Checks another process's description of its memory.
bool Plausible(const agent_protocol::IpcAnswer& answer) {
  return answer.region != 0 && answer.region_bytes != 0 && answer.region_bytes <= kMostBytes &&
         (IsProgramId(answer.region) || answer.region_bytes % kGranularity == 0) &&
         answer.bytes != 0 && answer.offset < answer.region_bytes &&
         answer.bytes <= answer.region_bytes - answer.offset;
}

bool AskForMemory(const IpcPlace& owner, uint64_t piece, uint64_t region, IpcGiven* given,
                  const char** why) {
  const agent_protocol::Uuid* mine = OwnIpcName();
  if (mine == nullptr) {
    *why = "the kernel returned no random bytes";
    return false;
  }
  if (given->socket < 0) given->socket = ConnectIpc(owner, why);
  if (given->socket < 0) return false;
  const agent_protocol::IpcRequest request{{}, *mine, piece, region};
  return AskIpc(given->socket, agent_protocol::Type::kIpcGive, request, kAnswerTimeoutMs,
                &given->answer, &given->fd, why);
}

}  // namespace

void IpcGiven::Begin() {
  if (!open) MayShare();
  open = true;
}

void IpcGiven::End() {
  if (open) MaySharePassed();
  open = false;
  if (socket >= 0) close(socket);
  if (fd >= 0) close(fd);
  socket = fd = -1;
}

CUresult AskPatiently(const IpcHandle& handle, IpcGiven* given) {
  const agent_protocol::IpcAnswer& answer = given->answer;
  for (bool again = true;;) {
    const char* why = "";
    given->Begin();
    if (!AskForMemory(handle.owner, handle.id, 0, given, &why)) {
      given->End();  // before this thread blocks at the gate: an image must hold no connection
      if (AwaitOwner(handle.owner, &again)) continue;
      SayCannotOpen(handle.owner.pid, why);
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (answer.outcome != IpcOutcome::kNotNow) break;
    // The owner is being suspended, and this process may be next. If the owner has ended
    // afterwards, the next request fails.
    gate::Outside outside;
    AskIpc(given->socket, agent_protocol::Type::kIpcWait, {{}, {}, 0, 0}, -1, &given->answer,
           &given->fd, &why);
    given->End();  // as above
  }
  if (answer.outcome == IpcOutcome::kDriver) return CUresult(answer.driver_error);
  // The memory was freed; the plain driver returns the same error.
  if (answer.outcome != IpcOutcome::kGiven || !Plausible(answer)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

namespace {

// Finds the requested item, and the part of it that the program has shared. Returns an empty item
// if the requested one does not exist, or no longer exists.
Item FindAsked(const agent_protocol::IpcRequest& request, Block* part) {
  const uint64_t wanted = request.region == 0 ? request.piece : request.region;
  if (IsProgramId(wanted)) {
    ProgramHandle* handle = FindProgramHandle(wanted);
    if (handle == nullptr || !handle->exported || handle->import != nullptr) return {};
    *part = {};
    part->bytes = handle->bytes;
    return {nullptr, handle};
  }
  for (Region* region : g_regions) {
    if (region->import != nullptr || region->pool != nullptr) continue;
    for (const Block& block : region->blocks) {
      if ((request.region == 0 ? block.id : region->id) != wanted) continue;
      *part = block;
      return {region, nullptr};
    }
  }
  return {};
}

}  // namespace

void GiveShared(const agent_protocol::IpcRequest& request, agent_protocol::IpcAnswer* answer,
                int* fd) {
  *answer = {};
  answer->outcome = IpcOutcome::kGone;
  if (IsSharedEvent(request.piece)) {
    answer->outcome = IpcOutcome::kReady;
    return;
  }
  Lock lock(g_memory_mutex);
  // While the gate is closed, the memory is given only to importers that had it when the gate
  // closed. A new importer is not in the list of importers that the client has, and waits until the
  // gate opens.
  if (request.region == 0 && gate::IsClosed()) {
    answer->outcome = IpcOutcome::kNotNow;
    return;
  }
  Block part{};
  const Item item = FindAsked(request, &part);
  if (item.region == nullptr && item.handle == nullptr) return;
  if (!PresentIn(item)) {
    answer->outcome = IpcOutcome::kNotNow;
    return;
  }
  answer->driver_error = ExportItem(item, fd);
  answer->outcome = answer->driver_error == CUDA_SUCCESS ? IpcOutcome::kGiven : IpcOutcome::kDriver;
  if (answer->outcome == IpcOutcome::kDriver) return;
  // Count the use before the reply: after it, the importer's program may release the handle.
  if (item.handle != nullptr) {
    ++item.handle->users;
    item.handle->claimed = true;
  }
  answer->device = KnownDevice(DeviceOf(item))->uuid;
  answer->region = item.region != nullptr ? item.region->id : item.handle->id;
  answer->region_bytes = BytesOf(item);
  answer->offset = part.offset;
  answer->bytes = part.bytes;
}

void FreeImport(Import* import) {
  import->link.Close();
  free(import);
}

CUresult ReleaseImports() {
  CUresult error = CUDA_SUCCESS;
  ForEachImport([&](const Item& item) {
    SayAway(ImportOf(item)->link);
    ImportOf(item)->link.Close();
    if (!PresentIn(item)) return true;
    const CUresult r = ReleaseItem(item);
    if (error == CUDA_SUCCESS) error = r;
    return true;
  });
  return error;
}

namespace {

bool Rejoin(const Item& item, const char** why) {
  Import* import = ImportOf(item);
  IpcGiven given;
  if (!AskForMemory(import->from, 0, import->region, &given, why)) return false;
  if (given.answer.outcome == IpcOutcome::kNotNow) {
    *why = "that process has not mapped it again yet";
    return false;
  }
  if (given.answer.outcome != IpcOutcome::kGiven || given.answer.region_bytes != BytesOf(item)) {
    *why = "that process no longer has it";
    return false;
  }
  if (CUresult r = ImportItem(item, given.fd); r != CUDA_SUCCESS) {
    *why = "unknown error";
    real::cuGetErrorName(r, why);
    return false;
  }
  import->link.Take(given.socket);
  given.socket = -1;
  return true;
}

bool Reconnect(Import* import, const char** why) {
  IpcGiven given;
  if (!AskForMemory(import->from, 0, import->region, &given, why)) return false;
  *why = "that process has freed it";
  if (given.answer.outcome != IpcOutcome::kGiven) return false;
  import->link.Close();
  import->link.Take(given.socket);
  given.socket = -1;
  return true;
}

}  // namespace

bool ImportsAreKnown(char* text, size_t size) {
  bool all = true;
  ForEachImport([&](const Item& item) {
    Import* import = ImportOf(item);
    const char* why = "";
    all = !PresentIn(item) || import->link.Connected() || Reconnect(import, &why);
    if (all) return true;
    snprintf(
        text, size,
        "the program uses GPU memory of process %d (CUDA IPC), which would be lost: %s; let the "
        "program close that memory first",
        int(import->from.pid), why);
    return false;
  });
  return all;
}

bool RejoinImports(char* text, size_t size) {
  bool all = true;
  ForEachImport([&](const Item& item) {
    Import* import = ImportOf(item);
    const char* why = "";
    if (PresentIn(item)) {
      // The owner may have been suspended and resumed alone, and then has no record of this
      // importer. If the owner has ended, the memory stays here, as with the plain driver.
      if (!import->link.Connected()) Reconnect(import, &why);
      return true;
    }
    all = Rejoin(item, &why);
    if (all) return true;
    snprintf(text, size,
             "the program uses GPU memory of process %d (CUDA IPC), which cannot be mapped: %s",
             int(import->from.pid), why);
    return false;
  });
  return all;
}

namespace {

Mutex g_sharing_mutex;  // taken before all other mutexes
uint32_t g_may_share = 0;

bool Shares() {
  if (HasIpcUsers()) return true;
  Lock lock(g_memory_mutex);
  bool any = false;
  ForEachImport([&](const Item&) {
    any = true;
    return false;
  });
  return any;
}

}  // namespace

void MayShare() {
  Lock lock(g_sharing_mutex);
  ++g_may_share;
  NoteInHeader(agent_protocol::kMemoryShared, agent_protocol::kMemoryShared);
}

void NoteWhetherStillShared() {
  Lock lock(g_sharing_mutex);
  if (g_may_share == 0 && !Shares()) NoteInHeader(agent_protocol::kMemoryShared, 0);
}

void MaySharePassed() {
  Lock lock(g_sharing_mutex);
  if (--g_may_share == 0 && !Shares()) NoteInHeader(agent_protocol::kMemoryShared, 0);
}

namespace {

void AddPeer(agent_protocol::HelloReply* reply, const agent_protocol::Uuid& name, int32_t pid,
             uint32_t role) {
  uint32_t known = reply->ipc_peer_count;
  if (known > agent_protocol::kMaxIpcPeers) known = agent_protocol::kMaxIpcPeers;
  for (uint32_t i = 0; i < known; ++i) {
    if (!SameName(reply->ipc_peers[i].name, name)) continue;
    reply->ipc_peers[i].role |= role;
    return;
  }
  if (reply->ipc_peer_count++ < agent_protocol::kMaxIpcPeers) {
    reply->ipc_peers[known] = {name, pid, role};
  }
}

bool StillHere(uint64_t id) {
  if (IsProgramId(id)) return FindProgramHandle(id) != nullptr;
  for (const Region* region : g_regions) {
    if (region->import == nullptr && region->id == id) return true;
  }
  return false;
}

}  // namespace

void DescribeIpc(agent_protocol::HelloReply* reply) {
  Vector<IpcUser> users;
  // If host memory for the list cannot be allocated, report more peers than the limit, so that the
  // client refuses the suspend.
  if (!ListIpcUsers(&users)) reply->ipc_peer_count = agent_protocol::kMaxIpcPeers + 1;
  if (HasIpcName()) reply->ipc_name = *OwnIpcName();
  Lock lock(g_memory_mutex);
  for (const IpcUser& user : users) {
    uint32_t role = agent_protocol::kIpcUsesOurs;
    if (!StillHere(user.region)) role |= agent_protocol::kIpcFreedHere;
    AddPeer(reply, user.name, user.pid, role);
  }
  ForEachImport([&](const Item& item) {
    const Import* import = ImportOf(item);
    ++reply->ipc_ranges;
    reply->ipc_bytes += BytesOf(item);
    reply->imported_ranges += PresentIn(item) ? 1 : 0;
    AddPeer(reply, import->from.name, import->from.pid, agent_protocol::kIpcOwnsTheirs);
    return true;
  });
  users.Free();
}

// SAFETY: only for a forked child, which has no other threads. ResetMemory and ResetProgramVmm
// abandon the tables.
void ResetIpc() {
  ForEachImport([](const Item& item) {
    ImportOf(item)->link.Close();
    return true;
  });
  g_sharing_mutex.ResetAfterFork();
  g_may_share = 0;
  ResetIpcServerAfterFork();
  ResetIpcEvents();
}

}  // namespace stasis::agent
