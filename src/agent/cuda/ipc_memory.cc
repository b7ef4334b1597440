// cuIpcGetMemHandle and related calls: allocations that other processes open (ipc.h).

#include <stdlib.h>
#include <string.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/ipc.h"

namespace stasis::agent {
namespace {

// Returns the ordinal of the device, or -1 if this process does not see it.
CUdevice DeviceOf(const agent_protocol::Uuid& uuid) {
  int count = 0;
  if (real::cuDeviceGetCount(&count) != CUDA_SUCCESS) return -1;
  for (CUdevice device = 0; device < count && device < int(agent_protocol::kMaxDevices); ++device) {
    if (const Device* known = KnownDevice(device)) {
      // After a move to another GPU, the driver reports the old UUID.
      if (memcmp(&known->uuid, &uuid, sizeof(uuid)) == 0) return device;
      continue;
    }
    CUuuid one{};
    if (real::cuDeviceGetUuid_v2(&one, device) != CUDA_SUCCESS &&
        real::cuDeviceGetUuid(&one, device) != CUDA_SUCCESS) {
      continue;
    }
    if (memcmp(one.bytes, uuid.bytes, sizeof(uuid.bytes)) == 0) return device;
  }
  return -1;
}

// Increases the open count of an allocation that is already open in the context. Returns false if
// the allocation is not open there. The caller holds the mutex.
bool OpenAgain(const IpcPlace& owner, uint64_t piece, CUcontext context, CUdeviceptr* out) {
  for (Region* region : g_regions) {
    if (region->import == nullptr || region->context != context ||
        !SameName(region->import->from.name, owner.name)) {
      continue;
    }
    for (Block& block : region->blocks) {
      if (block.source != piece) continue;
      ++block.opens;
      *out = region->address + block.offset;
      return true;
    }
  }
  return false;
}

// Adds the allocation to the region. Returns false if it overlaps another open allocation: then the
// owner has freed that allocation and reused its addresses.
bool Enter(Region* region, uint64_t piece, const agent_protocol::IpcAnswer& answer,
           CUdeviceptr* out) {
  size_t at = region->blocks.LowerBound(
      [&](const Block& block) { return block.offset + block.bytes <= answer.offset; });
  if (at < region->blocks.size() && region->blocks[at].offset < answer.offset + answer.bytes) {
    return false;
  }
  if (!region->blocks.Insert(at, {answer.offset, answer.bytes, NextBufferId(), false, piece, 1})) {
    return false;
  }
  region->used += answer.bytes;
  *out = region->address + answer.offset;
  return true;
}

// The caller holds g_growth_mutex, so no other thread opens the same memory meanwhile.
CUresult MapGiven(const IpcPlace& owner, uint64_t piece, CUcontext context, CUdevice reader,
                  CUdevice device, IpcGiven* given, CUdeviceptr* out) {
  const agent_protocol::IpcAnswer& answer = given->answer;
  {
    Lock lock(g_memory_mutex);
    // Another thread may have opened the allocation during the request to the owner.
    if (OpenAgain(owner, piece, context, out)) return CUDA_SUCCESS;
    for (Region* region : g_regions) {
      const Import* import = region->import;
      if (import == nullptr || region->context != context || import->region != answer.region ||
          !SameName(import->from.name, owner.name) || region->bytes != answer.region_bytes) {
        continue;
      }
      if (Enter(region, piece, answer, out)) return CUDA_SUCCESS;
    }
  }
  auto* import = static_cast<Import*>(malloc(sizeof(Import)));
  if (import == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *import = {owner, answer.region, reader, {}};
  Region* region = nullptr;
  CUresult r = MakeImport(answer.region_bytes, device, context, import, given->fd, &region);
  if (r != CUDA_SUCCESS) {
    free(import);
    return r;
  }
  Leaving leaving;
  Lock lock(g_memory_mutex);
  if (!Enter(region, piece, answer, out) || !EnterRegion(region)) {
    leaving.Add(region);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  import->link.Take(given->socket);
  given->socket = -1;
  return CUDA_SUCCESS;
}

CUresult Open(CUdeviceptr* out, const IpcHandle& handle, unsigned flags) {
  CUcontext context = nullptr;
  CUdevice reader = -1;
  if (out == nullptr || (flags & ~unsigned(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (real::cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr ||
      real::cuCtxGetDevice(&reader) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (!IsSound(handle)) return CUDA_ERROR_INVALID_VALUE;
  NoteContext(context, reader);
  EnsureControl();
  if (IsOwn(handle)) return CUDA_ERROR_INVALID_CONTEXT;
  {
    Lock lock(g_memory_mutex);
    if (OpenAgain(handle.owner, handle.id, context, out)) return CUDA_SUCCESS;
  }
  IpcGiven given;
  if (CUresult r = AskPatiently(handle, &given); r != CUDA_SUCCESS) return r;
  CUdevice device = DeviceOf(given.answer.device);
  if (device < 0) {
    SayCannotOpen(handle.owner.pid, "it is on a GPU that is not visible to this process");
    return CUDA_ERROR_INVALID_DEVICE;
  }
  if (DeviceAt(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  Lock growing(g_growth_mutex);
  return MapGiven(handle.owner, handle.id, context, reader, device, &given, out);
}

}  // namespace

CUresult GiveImportAccess(const Region* region) {
  const CUdevice reader = region->import->reader;
  if (CUresult r = GiveAccess(region->address, region->bytes, region->device);
      r != CUDA_SUCCESS || reader == region->device) {
    return r;
  }
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, reader}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return real::cuMemSetAccess(region->address, region->bytes, &access, 1);
}

namespace hook {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr ptr) {
  uint64_t piece = 0;
  {
    Lock lock(g_memory_mutex);
    Found found = FindAllocation(ptr);
    // cuIpcGetMemHandle does not support pool memory, so the driver returns the error for it.
    if (found.block != nullptr && found.region->pool == nullptr) {
      if (handle == nullptr || found.region->import != nullptr) return CUDA_ERROR_INVALID_VALUE;
      piece = found.block->id;
    }
  }
  if (piece == 0) return real::cuIpcGetMemHandle(handle, ptr);
  CUcontext context = nullptr;
  if (real::cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return MakeIpcHandle(kIpcMemory, piece, handle->reserved);
}

namespace {

// Notes a blocker if the call succeeded: the driver then shares the memory itself, and the agent
// cannot carry it.
CUresult Noted(CUresult r) {
  if (r == CUDA_SUCCESS) NoteBlocker(agent_protocol::kBlockerLegacyIpc, "cuIpcOpenMemHandle");
  return r;
}

}  // namespace

// The CUDA runtime requests this older version of the function from cuGetProcAddress.
CUresult cuIpcOpenMemHandle(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned flags) {
  IpcHandle ours;
  return ReadIpcHandle(kIpcMemory, handle.reserved, &ours)
             ? Open(ptr, ours, flags)
             : Noted(real::cuIpcOpenMemHandle(ptr, handle, flags));
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* ptr, CUipcMemHandle handle, unsigned flags) {
  IpcHandle ours;
  return ReadIpcHandle(kIpcMemory, handle.reserved, &ours)
             ? Open(ptr, ours, flags)
             : Noted(real::cuIpcOpenMemHandle_v2(ptr, handle, flags));
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
  CUcontext context = nullptr;
  {
    Lock lock(g_memory_mutex);
    Found found = FindAllocation(ptr);
    if (found.block != nullptr && found.region->import != nullptr) {
      if (found.region->address + found.block->offset != ptr) return CUDA_ERROR_INVALID_VALUE;
      if (found.block->opens > 1) {
        --found.block->opens;
        return CUDA_SUCCESS;
      }
      context = found.region->context;
    }
  }
  if (context == nullptr) {
    CUresult r = real::cuIpcCloseMemHandle(ptr);
    if (r == CUDA_SUCCESS) ForgetBlocker(agent_protocol::kBlockerLegacyIpc);
    return r;
  }
  // Submitted work may still use the memory.
  if (CUresult r = SynchronizeContext(context); r != CUDA_SUCCESS) return r;
  const ScopedMayShare at_the_end;
  Leaving leaving;
  Lock lock(g_memory_mutex);
  Found found = FindAllocation(ptr);
  if (found.block == nullptr || found.region->import == nullptr ||
      found.region->address + found.block->offset != ptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--found.block->opens > 0) return CUDA_SUCCESS;
  Region* region = found.region;
  region->used -= found.block->bytes;
  region->blocks.Erase(size_t(found.block - region->blocks.begin()));
  if (region->blocks.size() == 0) DropRegion(region, &leaving);
  return CUDA_SUCCESS;
}

}  // namespace hook
}  // namespace stasis::agent
