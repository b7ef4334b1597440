// The exported functions of HIP, generated from abi/hip/functions.def and hooks.def, and the hooks
// of those that have no equivalent in the CUDA driver.

#include <cassert>
#include <iterator>

#include "abi/hip/as_driver.h"
#include "agent/blockers.h"
#include "agent/control.h"
#include "agent/cuda/allocate.h"
#include "agent/cuda/contexts.h"
#include "agent/cuda/driver_memory.h"
#include "agent/cuda/hooks.h"
#include "agent/cuda/memory.h"
#include "agent/gate.h"
#include "agent/hip/process.h"

namespace stasis::hip {

using agent::Address;
using agent::IsHip;

// HIP's own functions.
namespace real {
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments)                                  \
  inline hipError_t symbol parameters {                                                      \
    return reinterpret_cast<hipError_t(*) parameters>(Address(agent::k_##symbol)) arguments; \
  }
#define STASIS_HIP_OWN_SPT(symbol, kind, parameters, arguments) \
  STASIS_HIP_OWN(symbol, kind, parameters, arguments)           \
  STASIS_HIP_OWN(symbol##_spt, kind, parameters, arguments)
using Word = agent::hook::Word;
#define STASIS_HIP_OTHER(symbol, kind, count) \
  STASIS_HIP_OWN(symbol, kind, (STASIS_P##count), (STASIS_A##count))
#define STASIS_HIP_OTHER_SPT(symbol, kind, count) \
  STASIS_HIP_OTHER(symbol, kind, count)           \
  STASIS_HIP_OTHER(symbol##_spt, kind, count)
#include "abi/hip/functions.def"
}  // namespace real

// The functions that the program's calls reach: HIP's own, except those that a function here hides.
namespace hook {
using namespace real;  // NOLINT

hipError_t hipSetDevice(int device) {
  const hipError_t r = real::hipSetDevice(device);
  if (r == CUDA_SUCCESS && IsHip()) agent::NoteCurrentDevice();
  return r;
}

hipError_t hipDeviceReset() {
  if (!IsHip()) return real::hipDeviceReset();
  return agent::EndCurrentDevice([] { return real::hipDeviceReset(); });
}

// The runtime's call alone does not grant access to memory from handles.
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  const hipError_t r = real::hipDeviceEnablePeerAccess(peer, flags);
  CUdevice mine = -1;
  if (r == CUDA_SUCCESS && IsHip() && agent::real::cuCtxGetDevice(&mine) == CUDA_SUCCESS) {
    agent::GrantPeer(peer, mine);
  }
  return r;
}

namespace {

// Allocates rows through the agent's hook of cuMemAllocPitch. The size of an element only affects
// how the driver reads textures.
hipError_t AllocateRows(void** ptr, size_t* pitch, size_t width, size_t height) {
  constexpr unsigned kElement = 4;
  CUdeviceptr address = 0;
  const hipError_t r = agent::hook::cuMemAllocPitch_v2(&address, pitch, width, height, kElement);
  if (r == CUDA_SUCCESS) *ptr = reinterpret_cast<void*>(address);
  return r;
}

}  // namespace

hipError_t hipMallocPitch(void** ptr, size_t* pitch, size_t width, size_t height) {
  if (!IsHip() || ptr == nullptr || pitch == nullptr || width == 0 || height == 0) {
    return real::hipMallocPitch(ptr, pitch, width, height);
  }
  return AllocateRows(ptr, pitch, width, height);
}

hipError_t hipMalloc3D(hipPitchedPtr* ptr, hipExtent extent) {
  size_t rows = 0;
  if (!IsHip() || ptr == nullptr || extent.width == 0 ||
      __builtin_mul_overflow(extent.height, extent.depth, &rows) || rows == 0) {
    return real::hipMalloc3D(ptr, extent);
  }
  hipPitchedPtr made{nullptr, 0, extent.width, extent.height};
  const hipError_t r = AllocateRows(&made.ptr, &made.pitch, extent.width, rows);
  if (r == CUDA_SUCCESS) *ptr = made;
  return r;
}

// Other flags set properties that hipMemCreate does not offer; the runtime allocates it.
hipError_t hipExtMallocWithFlags(void** ptr, size_t bytes, unsigned flags) {
  if (IsHip() && flags == hipDeviceMallocDefault) {
    return agent::hook::cuMemAlloc_v2(reinterpret_cast<CUdeviceptr*>(ptr), bytes);
  }
  if (!IsHip()) return real::hipExtMallocWithFlags(ptr, bytes, flags);
  const hipError_t r = agent::AllocateOrWait({bytes, agent::Need::kCurrent}, [&] {
    return real::hipExtMallocWithFlags(ptr, bytes, flags);
  });
  if (r == CUDA_SUCCESS) {
    agent::CountDriverMemory(agent::DriverKind::kPlain, reinterpret_cast<CUdeviceptr>(*ptr), bytes);
  }
  return r;
}

#define STASIS_HIP_ARRAY(symbol, parameters, arguments) \
  hipError_t symbol parameters {                        \
    agent::CountArray();                                \
    return real::symbol arguments;                      \
  }
STASIS_HIP_ARRAY(hipMalloc3DArray,
                 (hipArray_t * array, const hipChannelFormatDesc* format, hipExtent extent,
                  unsigned flags),
                 (array, format, extent, flags))
STASIS_HIP_ARRAY(hipMallocMipmappedArray,
                 (hipMipmappedArray_t * array, const hipChannelFormatDesc* format, hipExtent extent,
                  unsigned levels, unsigned flags),
                 (array, format, extent, levels, flags))
STASIS_HIP_ARRAY(hipMallocArray, (STASIS_P5), (STASIS_A5))
STASIS_HIP_ARRAY(hipArrayCreate, (STASIS_P2), (STASIS_A2))
STASIS_HIP_ARRAY(hipArray3DCreate, (STASIS_P2), (STASIS_A2))
STASIS_HIP_ARRAY(hipMipmappedArrayCreate, (STASIS_P3), (STASIS_A3))
#undef STASIS_HIP_ARRAY

// The list contains handles of the agent, which must not reach HIP. AMD's runtime does not have
// this function's feature.
hipError_t hipMemMapArrayAsync(STASIS_P3) {
  return IsHip() ? CUDA_ERROR_NOT_SUPPORTED : real::hipMemMapArrayAsync(STASIS_A3);
}

#define STASIS_HIP_SHARES_POOL(symbol, parameters, arguments)         \
  hipError_t symbol parameters {                                      \
    const hipError_t r = real::symbol arguments;                      \
    if (r == CUDA_SUCCESS) {                                          \
      agent::NoteBlocker(agent_protocol::kBlockerSharedVmm, #symbol); \
    }                                                                 \
    return r;                                                         \
  }
STASIS_HIP_SHARES_POOL(hipMemPoolExportToShareableHandle,
                       (void* handle, hipMemPool_t pool, CUmemAllocationHandleType type,
                        unsigned flags),
                       (handle, pool, type, flags))
STASIS_HIP_SHARES_POOL(hipMemPoolImportFromShareableHandle,
                       (hipMemPool_t * pool, void* handle, CUmemAllocationHandleType type,
                        unsigned flags),
                       (pool, handle, type, flags))
#undef STASIS_HIP_SHARES_POOL

}  // namespace hook

// A function of the driver under HIP's name: a jump to the agent's hook, which takes the same
// arguments, through a slot that PassHipThrough can change.
#if defined(__x86_64__)
#define STASIS_JUMP(symbol) "  endbr64\n  jmp *stasis_slot_" symbol "(%rip)\n"
#elif defined(__aarch64__)
#define STASIS_JUMP(symbol)                                                                 \
  "  bti c\n  adrp x16, stasis_slot_" symbol "\n  ldr x16, [x16, :lo12:stasis_slot_" symbol \
  "]\n  br x16\n"
#endif
#define STASIS_HIP_BIND(symbol, driver)                                         \
  extern "C" hipError_t symbol();                                               \
  asm("  .section stasis_hip_slots, \"aw\"\n  .balign 8\n"                      \
      "stasis_slot_" #symbol ":\n  .quad " #driver                              \
      "\n"                                                                      \
      "  .text\n  .globl " #symbol "\n  .type " #symbol ", %function\n" #symbol \
      ":\n" STASIS_JUMP(#symbol) "  .size " #symbol ", .-" #symbol "\n");
#include "agent/hip/hooks.def"

// In the order of STASIS_HIP_BIND in hooks.def. The linker gives these names to a section's bounds.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
extern "C" __attribute__((visibility("hidden"))) void* __start_stasis_hip_slots[];
extern "C" __attribute__((visibility("hidden"))) void* __stop_stasis_hip_slots[];
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)

#define STASIS_GATED(symbol, parameters, arguments) \
  STASIS_EXPORT hipError_t symbol parameters {      \
    agent::gate::Pass inside;                       \
    return hook::symbol arguments;                  \
  }
#define STASIS_WRAP_Lookup(symbol, parameters, arguments)
#define STASIS_WRAP_Query STASIS_WRAP_Lookup
#define STASIS_WRAP_Object STASIS_GATED
#define STASIS_WRAP_Memory STASIS_GATED
#define STASIS_WRAP_Submit STASIS_GATED
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) \
  STASIS_WRAP_##kind(symbol, parameters, arguments)
#define STASIS_HIP_OWN_SPT(symbol, kind, parameters, arguments) \
  STASIS_WRAP_##kind(symbol, parameters, arguments)             \
      STASIS_WRAP_##kind(symbol##_spt, parameters, arguments)
using Word = real::Word;
#define STASIS_HIP_OTHER(symbol, kind, count) \
  STASIS_WRAP_##kind(symbol, (STASIS_P##count), (STASIS_A##count))
#define STASIS_HIP_OTHER_SPT(symbol, kind, count) \
  STASIS_HIP_OTHER(symbol, kind, count) STASIS_HIP_OTHER(symbol##_spt, kind, count)
#include "abi/hip/functions.def"

#define STASIS_HIP_PLAIN(symbol, count)                                                   \
  STASIS_EXPORT hipError_t symbol(STASIS_P##count) {                                      \
    agent::gate::Pass inside;                                                             \
    return reinterpret_cast<hipError_t (*)(STASIS_P##count)>(Address(agent::k_##symbol))( \
        STASIS_A##count);                                                                 \
  }
#include "agent/hip/hooks.def"

// A program may count the GPUs before any other call. That starts the runtime, so from then on a
// client may look for the agent.
STASIS_EXPORT hipError_t hipGetDeviceCount(int* count) {
  if (agent::Bind() && IsHip()) agent::EnsureControl();
  return reinterpret_cast<fn::hipGetDeviceCount*>(Address(agent::k_hipGetDeviceCount))(count);
}

STASIS_EXPORT hipError_t hipGetProcAddress(const char* symbol, void** pfn, int version,
                                           uint64_t flags, CUdriverProcAddressQueryResult* status) {
  const hipError_t r = real::hipGetProcAddress(symbol, pfn, version, flags, status);
  if (r == CUDA_SUCCESS) *pfn = agent::Substitute(symbol, *pfn);
  return r;
}

// As hipDeviceEnablePeerAccess, for a device that is named by one of HIP's deprecated contexts.
STASIS_EXPORT hipError_t hipCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  agent::gate::Pass inside;
  const hipError_t r = reinterpret_cast<fn::hipCtxEnablePeerAccess*>(
      Address(agent::k_hipCtxEnablePeerAccess))(peer, flags);
  CUdevice mine = -1, theirs = -1;
  if (r != CUDA_SUCCESS || !IsHip() || agent::real::cuCtxGetDevice(&mine) != CUDA_SUCCESS) return r;
  const auto push = reinterpret_cast<fn::hipCtxPushCurrent*>(Address(agent::k_hipCtxPushCurrent));
  const auto pop = reinterpret_cast<fn::hipCtxPopCurrent*>(Address(agent::k_hipCtxPopCurrent));
  if (push(peer) != CUDA_SUCCESS) return r;
  const CUresult known = agent::real::cuCtxGetDevice(&theirs);
  CUcontext popped = nullptr;
  (void)pop(&popped);
  if (known == CUDA_SUCCESS) agent::GrantPeer(theirs, mine);
  return r;
}

namespace {

hipMemoryType DeviceMemoryType() {
  constexpr auto kOfHip5 = hipMemoryType(1);
  return as_driver::Version() >= as_driver::kVersion6 ? hipMemoryTypeDevice : kOfHip5;
}

// Describes the program's memory, also while it is away. Returns false if the memory is not the
// agent's.
bool Describe(const void* ptr, hipPointerAttribute_t* out) {
  const hipMemoryType type = DeviceMemoryType();
  agent::Lock lock(agent::g_memory_mutex);
  const agent::Found found = agent::FindAllocation(reinterpret_cast<CUdeviceptr>(ptr));
  if (found.block == nullptr) return false;
  *out = {type, found.region->device, const_cast<void*>(ptr), nullptr, 0, 0};
  return true;
}

bool FindBytes(void* ptr, size_t* bytes) {
  agent::Lock lock(agent::g_memory_mutex);
  const agent::Found found = agent::FindAllocation(reinterpret_cast<CUdeviceptr>(ptr));
  if (found.block != nullptr) *bytes = found.block->bytes;
  return found.block != nullptr;
}

}  // namespace

STASIS_EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes,
                                                 const void* ptr) {
  if (attributes != nullptr && agent::Bind() && IsHip() && Describe(ptr, attributes)) {
    return CUDA_SUCCESS;
  }
  agent::gate::Ask asking;
  return real::hipPointerGetAttributes(attributes, ptr);
}

STASIS_EXPORT hipError_t hipMemPtrGetInfo(void* ptr, size_t* size) {
  if (size != nullptr && FindBytes(ptr, size)) return CUDA_SUCCESS;
  agent::gate::Ask asking;
  return real::hipMemPtrGetInfo(ptr, size);
}

STASIS_EXPORT hipError_t hipMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                         void* os_handle,
                                                         CUmemAllocationHandleType type) {
  agent::gate::Pass inside;
  if (!IsHip()) {
    return reinterpret_cast<fn::hipMemImportFromShareableHandle*>(
        Address(agent::k_hipMemImportFromShareableHandle))(handle, os_handle, type);
  }
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    os_handle = reinterpret_cast<void*>(intptr_t{as_driver::DescriptorOf(os_handle)});
  }
  return agent::hook::cuMemImportFromShareableHandle(handle, os_handle, type);
}

}  // namespace stasis::hip

namespace stasis::agent {
namespace {

// Checks that every function whose calls must pass the gate has a hook.
struct Hooked {
  bool at[kFunctionCount] = {};
  constexpr Hooked() {
#define STASIS_HIP_BIND(symbol, driver) at[k_##symbol] = true;
#define STASIS_HIP_PLAIN STASIS_HIP_BIND
#define STASIS_HIP_UNGATED(symbol) at[k_##symbol] = true;
#include "agent/hip/hooks.def"
  }
};
constexpr Hooked kHooked;

struct MustHook {
  bool at[kFunctionCount] = {};
  constexpr MustHook() {
    // NOLINTBEGIN(readability-identifier-naming): the names are those of the table's kinds
    constexpr bool Lookup = false, Init = false, Query = false, Held = false, Poll = true,
                   Wait = true, Checkpoint = false, Object = true, Memory = true, Submit = true;
    // NOLINTEND(readability-identifier-naming)
#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) at[k_##symbol] = kind;
#include "abi/cuda/driver_functions.def"
  }
};
constexpr MustHook kMustHook;

#define STASIS_HIP_SAME(symbol, driver)                              \
  static_assert(!kMustHook.at[k_##driver] || kHooked.at[k_##symbol], \
                #symbol " is missing in agent/hip/hooks.def");
#include "abi/hip/functions.def"

constexpr Index kBound[] = {
#define STASIS_HIP_BIND(symbol, driver) k_##symbol,
#include "agent/hip/hooks.def"
};

}  // namespace

void CompleteHipTable() {
  auto set = [](Index index, auto* ours) {
    __atomic_store_n(&g_functions[index].ours, reinterpret_cast<void*>(ours), __ATOMIC_RELAXED);
  };
#define STASIS_SET_Lookup(symbol)
#define STASIS_SET_Query(symbol)
#define STASIS_SET_Same(symbol)
#define STASIS_SET_Object(symbol) set(k_##symbol, &stasis::hip::symbol);
#define STASIS_SET_Memory STASIS_SET_Object
#define STASIS_SET_Submit STASIS_SET_Object
#define STASIS_HIP_SYMBOL(symbol, kind) STASIS_SET_##kind(symbol)
#include "agent/hip/symbols.def"
#define STASIS_HIP_BIND(symbol, driver)  \
  set(k_##symbol, &stasis::hip::symbol); \
  __atomic_store_n(&g_functions[k_##symbol].vital, g_functions[k_##driver].vital, __ATOMIC_RELAXED);
#define STASIS_HIP_PLAIN(symbol, count) set(k_##symbol, &stasis::hip::symbol);
#define STASIS_HIP_UNGATED(symbol) set(k_##symbol, &stasis::hip::symbol);
#include "agent/hip/hooks.def"
}

void PassHipThrough() {
  assert(size_t(stasis::hip::__stop_stasis_hip_slots - stasis::hip::__start_stasis_hip_slots) ==
         std::size(kBound));
  for (size_t i = 0; i < std::size(kBound); ++i) {
    __atomic_store_n(&stasis::hip::__start_stasis_hip_slots[i],
                     g_real[kBound[i]].load(std::memory_order_acquire), __ATOMIC_RELEASE);
  }
}

void NoteCurrentDevice() {
  CUcontext context = nullptr;
  CUdevice device = -1;
  if (real::cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
      real::cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return;
  }
  NoteContext(context, device);
  EnsureControl();
}

// The runtime starts at the first call of any thread, so this function takes the place of the hook
// of cuInit.
void gate::FirstCall() {
  if (Bind() && IsHip()) NoteCurrentDevice();
}

}  // namespace stasis::agent
