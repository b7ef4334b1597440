#include "agent/cuda/program_vmm.h"

#include <stdlib.h>
#include <string.h>

#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/allocate.h"
#include "agent/cuda/driver_memory.h"
#include "agent/cuda/ipc.h"
#include "agent/cuda/visible.h"
#include "agent/gate.h"
#include "agent/growth.h"

namespace stasis::agent {

Vector<ProgramHandle*> g_program_handles;

namespace {

struct Mapping {
  uint64_t address;
  uint64_t bytes;
  ProgramHandle* handle;
  AccessFlags protection;
};

Vector<Mapping> g_mappings;  // sorted by address

// Driver handles are addresses, and no address has these high bits.
constexpr uint64_t kIdBase = 0x57A5150000000000;
uint64_t g_next_id = kIdBase;

size_t MappingFrom(uint64_t address) {
  return g_mappings.LowerBound([&](const Mapping& m) { return m.address < address; });
}

// Memory is in use as long as the program holds its handle or maps it, or another process uses an
// export of it. As long as the memory is in use it must be carried, and this function returns
// false.
bool DropIfUnused(ProgramHandle* handle, Leaving* leaving) {
  if (handle->references > 0 || handle->mappings > 0 || handle->users > 0) return false;
  if (handle->exported && !handle->claimed) NoteUnclaimed();
  uint64_t id = handle->id;
  g_program_handles.Erase(
      g_program_handles.LowerBound([&](const ProgramHandle* h) { return h->id < id; }));
  growth::Remove(handle->bytes);
  leaving->Add(handle);
  return true;
}

bool CanBeCarried(const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->allocFlags.compressionType != 0 ||
      prop->allocFlags.usage != 0) {
    return false;
  }
  // JAX's pool requests file descriptors, and fabric handles if the device supports them.
  constexpr int kKnown = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
  if ((prop->requestedHandleTypes & ~kKnown) != 0) return false;
  Device* device = DeviceAt(prop->location.id);
  return device != nullptr && device->fast;
}

bool HoldsOurs(CUdeviceptr address) {
  size_t i =
      g_regions.LowerBound([&](const Region* r) { return r->address + r->bytes <= address; });
  return i < g_regions.size() && g_regions[i]->address <= address;
}

// CUarrayMapInfo of cuda.h. The bytes before and after the handle are passed on unchanged.
struct ArrayMapInfo {
  uint8_t before[64];
  uint64_t handle;
  uint8_t behind[24];
};
static_assert(sizeof(ArrayMapInfo) == 96);

// A copy of a list of ArrayMapInfo with the driver's handles. No copy is made if the list has no
// handle of the agent.
struct Translated {
  Translated(const ArrayMapInfo* list, unsigned count) {
    bool any = false;
    for (unsigned i = 0; list != nullptr && i < count; ++i) any |= IsProgramId(list[i].handle);
    if (!any) return;
    copy = static_cast<ArrayMapInfo*>(malloc(count * sizeof(ArrayMapInfo)));
    if (copy == nullptr) {
      error = CUDA_ERROR_OUT_OF_MEMORY;
      return;
    }
    Lock lock(g_memory_mutex);
    for (unsigned i = 0; i < count; ++i) {
      copy[i] = list[i];
      if (!IsProgramId(list[i].handle)) continue;
      ProgramHandle* handle = FindProgramHandle(list[i].handle);
      if (handle == nullptr) {
        error = CUDA_ERROR_INVALID_VALUE;
        return;
      }
      copy[i].handle = handle->real;
      // Mappings in arrays are not recorded, so memory that is mapped in an array cannot be
      // released at a suspend.
      NoteShared(handle, "cuMemMapArrayAsync");
    }
  }
  ~Translated() { free(copy); }
  Translated(const Translated&) = delete;
  ArrayMapInfo* copy = nullptr;
  // If true, the driver must not be called, because it might dereference the agent's number for the
  // handle as a pointer.
  CUresult error = CUDA_SUCCESS;
};

}  // namespace

void GiveBackHandle(ProgramHandle* handle) {
  if (handle->present) real::cuMemRelease(handle->real);
  handle->kept.Close();
  if (handle->import != nullptr) FreeImport(handle->import);
  if (handle->shared) ForgetBlocker(agent_protocol::kBlockerSharedVmm);
  free(handle);
}

bool IsProgramId(uint64_t handle) { return (handle & 0xFFFFFF0000000000) == kIdBase; }

ProgramHandle* FindProgramHandle(uint64_t id) {
  size_t i = g_program_handles.LowerBound([&](const ProgramHandle* h) { return h->id < id; });
  return i < g_program_handles.size() && g_program_handles[i]->id == id ? g_program_handles[i]
                                                                        : nullptr;
}

ProgramHandle* AddProgramHandle(CUmemGenericAllocationHandle real, uint64_t bytes,
                                CUdevice device) {
  auto* made = static_cast<ProgramHandle*>(calloc(1, sizeof(ProgramHandle)));
  if (made == nullptr) return nullptr;
  made->id = g_next_id + 1;
  made->real = real;
  made->bytes = bytes;
  made->device = device;
  made->references = 1;
  made->kept = KeptFd{};
  made->present = true;
  if (!g_program_handles.Push(made)) {
    free(made);
    return nullptr;
  }
  ++g_next_id;
  growth::Add(bytes);
  return made;
}

void EndUse(uint64_t id) {
  Leaving leaving;
  Lock lock(g_memory_mutex);
  ProgramHandle* handle = FindProgramHandle(id);
  if (handle == nullptr) return;
  --handle->users;
  // While the gate is closed, only the control thread changes the table.
  if (!gate::IsClosed()) DropIfUnused(handle, &leaving);
}

void DestroyUnusedHandles() {
  Leaving leaving;
  Lock lock(g_memory_mutex);
  if (gate::IsClosed()) return;  // see EndUse
  for (size_t i = 0; i < g_program_handles.size();) {
    if (!DropIfUnused(g_program_handles[i], &leaving)) ++i;
  }
}

void NoteShared(ProgramHandle* handle, const char* what) {
  if (!handle->shared) NoteBlocker(agent_protocol::kBlockerSharedVmm, what);
  handle->shared = true;
}

namespace {

CUresult MapOne(const Mapping& mapping) {
  CUresult r = real::cuMemMap(mapping.address, mapping.bytes, 0, mapping.handle->real, 0);
  if (r != CUDA_SUCCESS) return r;
  r = SetAccess(mapping.address, mapping.bytes, mapping.protection);
  if (r != CUDA_SUCCESS) real::cuMemUnmap(mapping.address, mapping.bytes);
  return r;
}

}  // namespace

CUresult UnmapAll(ProgramHandle* handle) {
  for (size_t i = 0; i < g_mappings.size(); ++i) {
    if (g_mappings[i].handle != handle) continue;
    CUresult r = real::cuMemUnmap(g_mappings[i].address, g_mappings[i].bytes);
    if (r == CUDA_SUCCESS) continue;
    while (i-- > 0) {
      if (g_mappings[i].handle == handle) MapOne(g_mappings[i]);
    }
    return r;
  }
  return CUDA_SUCCESS;
}

CUresult MapAll(ProgramHandle* handle) {
  for (size_t i = 0; i < g_mappings.size(); ++i) {
    if (g_mappings[i].handle != handle) continue;
    CUresult r = MapOne(g_mappings[i]);
    if (r == CUDA_SUCCESS) continue;
    while (i-- > 0) {
      if (g_mappings[i].handle == handle) {
        real::cuMemUnmap(g_mappings[i].address, g_mappings[i].bytes);
      }
    }
    return r;
  }
  return CUDA_SUCCESS;
}

uint64_t FirstMapping(ProgramHandle* handle, uint32_t* protection, uint64_t* peers) {
  *protection = 0;
  *peers = 0;
  for (const Mapping& mapping : g_mappings) {
    if (mapping.handle != handle) continue;
    *protection = mapping.protection[handle->device];
    for (int device = 0; device < int(agent_protocol::kMaxDevices); ++device) {
      if (device != handle->device && mapping.protection[device] != 0) *peers |= 1ull << device;
    }
    return mapping.address;
  }
  return 0;
}

void ResetProgramVmm() {
  g_program_handles.AbandonAfterFork();
  g_mappings.AbandonAfterFork();
}

namespace hook {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  EnsureControl();
  Need need;
  if (prop != nullptr && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (IsHidden(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    need = {size, prop->location.id};
  }
  if (handle != nullptr && flags == 0 && CanBeCarried(prop)) {
    CUmemAllocationProp wanted = *prop;
    wanted.requestedHandleTypes = CUmemAllocationHandleType(
        prop->requestedHandleTypes | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle real = 0;
    const CUresult created =
        AllocateOrWait(need, [&] { return real::cuMemCreate(&real, size, &wanted, flags); });
    if (created == CUDA_SUCCESS) {
      {
        Lock lock(g_memory_mutex);
        if (ProgramHandle* made = AddProgramHandle(real, size, prop->location.id)) {
          made->asked = prop->requestedHandleTypes;
          *handle = made->id;
          return CUDA_SUCCESS;
        }
      }
      real::cuMemRelease(real);
    }
    need = {};  // it has waited
  }
  CUresult r = AllocateOrWait(need, [&] { return real::cuMemCreate(handle, size, prop, flags); });
  if (r == CUDA_SUCCESS) CountDriverMemory(DriverKind::kProgramVmm, *handle, size);
  return r;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle id) {
  if (!IsProgramId(id)) {
    return FreeCounted(id, [&] { return real::cuMemRelease(id); });
  }
  bool import = false;
  {
    Leaving leaving;
    Lock lock(g_memory_mutex);
    ProgramHandle* handle = FindProgramHandle(id);
    if (handle == nullptr || handle->references == 0) return CUDA_ERROR_INVALID_VALUE;
    import = handle->import != nullptr;
    --handle->references;
    DropIfUnused(handle, &leaving);
  }
  if (import) ScopedMayShare look;
  SayUnclaimed();
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle id,
                  unsigned long long flags) {
  if (!IsProgramId(id)) return real::cuMemMap(ptr, size, offset, id, flags);
  ProgramHandle* handle = nullptr;
  CUmemGenericAllocationHandle real = 0;
  {
    Lock lock(g_memory_mutex);
    handle = FindProgramHandle(id);
    if (handle == nullptr || handle->references == 0) return CUDA_ERROR_INVALID_VALUE;
    ++handle->mappings;  // keeps the handle until the mapping is in the table
    real = handle->real;
  }
  CUresult r = real::cuMemMap(ptr, size, offset, real, flags);
  {
    Leaving leaving;
    Lock lock(g_memory_mutex);
    if (r == CUDA_SUCCESS && g_mappings.Insert(MappingFrom(ptr), {ptr, size, handle, {}})) return r;
    --handle->mappings;
    DropIfUnused(handle, &leaving);
  }
  if (r != CUDA_SUCCESS) return r;
  real::cuMemUnmap(ptr, size);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  {
    Lock lock(g_memory_mutex);
    if (HoldsOurs(ptr)) return CUDA_ERROR_INVALID_VALUE;  // not a mapping of the program
  }
  // cuMemUnmap is called without the mutex, because it waits for running work.
  CUresult r = real::cuMemUnmap(ptr, size);
  if (r != CUDA_SUCCESS) return r;
  bool imports = false;
  {
    Leaving leaving;
    Lock lock(g_memory_mutex);
    size_t i = MappingFrom(ptr);
    while (i < g_mappings.size() && g_mappings[i].address < ptr + size) {
      ProgramHandle* handle = g_mappings[i].handle;
      g_mappings.Erase(i);
      --handle->mappings;
      imports |= handle->import != nullptr;
      DropIfUnused(handle, &leaving);
    }
  }
  if (imports) ScopedMayShare look;
  SayUnclaimed();
  return r;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  {
    Lock lock(g_memory_mutex);
    if (HoldsOurs(ptr)) return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult r = real::cuMemSetAccess(ptr, size, desc, count);
  if (r != CUDA_SUCCESS) return r;
  Lock lock(g_memory_mutex);
  for (size_t i = MappingFrom(ptr); i < g_mappings.size() && g_mappings[i].address < ptr + size;
       ++i) {
    for (size_t d = 0; d < count; ++d) {
      int device = desc[d].location.id;
      if (desc[d].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 ||
          device >= int(agent_protocol::kMaxDevices)) {
        continue;
      }
      g_mappings[i].protection[device] = uint8_t(desc[d].flags);
    }
  }
  return r;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* addr) {
  CUdeviceptr address = reinterpret_cast<CUdeviceptr>(addr);
  {
    Lock lock(g_memory_mutex);
    if (HoldsOurs(address)) return CUDA_ERROR_INVALID_VALUE;
    size_t i =
        g_mappings.LowerBound([&](const Mapping& m) { return m.address + m.bytes <= address; });
    if (out != nullptr && i < g_mappings.size() && g_mappings[i].address <= address) {
      ++g_mappings[i].handle->references;
      *out = g_mappings[i].handle->id;
      return CUDA_SUCCESS;
    }
  }
  return real::cuMemRetainAllocationHandle(out, addr);
}

// A call for sparse arrays. Its list contains handles, which must be replaced by the driver's.
#define STASIS_MAP_ARRAY(suffix)                                               \
  CUresult cuMemMapArrayAsync##suffix(STASIS_P3) {                             \
    Translated list(reinterpret_cast<const ArrayMapInfo*>(a), unsigned(b));    \
    if (list.error != CUDA_SUCCESS) return list.error;                         \
    Word first = list.copy != nullptr ? reinterpret_cast<Word>(list.copy) : a; \
    return real::cuMemMapArrayAsync##suffix(first, b, c);                      \
  }
STASIS_MAP_ARRAY()
STASIS_MAP_ARRAY(_ptsz)
#undef STASIS_MAP_ARRAY

// The driver's checkpoint of a multicast object hangs forever.
CUresult cuMulticastCreate(STASIS_P2) {
  CUresult r = real::cuMulticastCreate(STASIS_A2);
  if (r == CUDA_SUCCESS) NoteBlocker(agent_protocol::kBlockerSharedVmm, "cuMulticastCreate");
  return r;
}

CUresult cuMulticastBindMem(STASIS_P6) {
  Word memory = c;
  if (IsProgramId(c)) {
    Lock lock(g_memory_mutex);
    ProgramHandle* handle = FindProgramHandle(c);
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    memory = handle->real;
  }
  CUresult r = real::cuMulticastBindMem(a, b, memory, d, e, f);
  if (r == CUDA_SUCCESS) NoteBlocker(agent_protocol::kBlockerSharedVmm, "cuMulticastBindMem");
  return r;
}

}  // namespace hook

STASIS_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                              CUmemGenericAllocationHandle id) {
  gate::Ask asking;
  if (!IsProgramId(id)) return real::cuMemGetAllocationPropertiesFromHandle(prop, id);
  Lock lock(g_memory_mutex);
  ProgramHandle* handle = FindProgramHandle(id);
  if (handle == nullptr || !handle->present) return CUDA_ERROR_INVALID_VALUE;
  CUresult r = real::cuMemGetAllocationPropertiesFromHandle(prop, handle->real);
  if (r == CUDA_SUCCESS && handle->import == nullptr) prop->requestedHandleTypes = handle->asked;
  return r;
}

}  // namespace stasis::agent
