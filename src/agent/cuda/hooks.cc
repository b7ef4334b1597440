// The exported functions, generated from driver_functions.def and hooks.def, and the hook table for
// look-ups.

#include <string.h>

#include "agent/cuda/hooks.h"
#include "agent/cuda/real.h"
#include "agent/cuda/visible.h"
#include "agent/gate.h"
#include "agent/hip/process.h"

namespace stasis::agent {

#define STASIS_GATED(symbol, parameters, arguments) \
  STASIS_EXPORT CUresult symbol parameters {        \
    gate::Pass inside;                              \
    return hook::symbol arguments;                  \
  }
#define STASIS_ASKING(symbol, parameters, arguments) \
  STASIS_EXPORT CUresult symbol parameters {         \
    gate::Ask asking;                                \
    return hook::symbol arguments;                   \
  }
#define STASIS_WRAP_Lookup(symbol, parameters, arguments)
#define STASIS_WRAP_Init STASIS_WRAP_Lookup
#define STASIS_WRAP_Query STASIS_WRAP_Lookup
#define STASIS_WRAP_Held STASIS_ASKING
#define STASIS_WRAP_Poll STASIS_ASKING
#define STASIS_WRAP_Wait STASIS_WRAP_Lookup
#define STASIS_WRAP_Checkpoint STASIS_WRAP_Lookup
#define STASIS_WRAP_Object STASIS_GATED
#define STASIS_WRAP_Memory STASIS_GATED
#define STASIS_WRAP_Submit STASIS_GATED

#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) \
  STASIS_WRAP_##kind(symbol, parameters, arguments)
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments) \
  STASIS_WRAP_##kind(symbol, parameters, arguments)                       \
      STASIS_WRAP_##kind(symbol##_ptsz, parameters, arguments)
#define STASIS_DRIVER_FN_PTDS(symbol, since, kind, parameters, arguments) \
  STASIS_WRAP_##kind(symbol, parameters, arguments)                       \
      STASIS_WRAP_##kind(symbol##_ptds, parameters, arguments)
#include "abi/cuda/driver_functions.def"

using hook::Word;
#define STASIS_HOOK_RAW(symbol, count) STASIS_GATED(symbol, (STASIS_P##count), (STASIS_A##count))
#include "agent/cuda/hooks.def"

#define STASIS_HOOK_DEVICE(symbol, count, device, other)                                           \
  STASIS_EXPORT CUresult symbol(STASIS_P##count) {                                                 \
    if (IsHidden(CUdevice(device)) || IsHidden(CUdevice(other))) return CUDA_ERROR_INVALID_DEVICE; \
    return reinterpret_cast<CUresult (*)(STASIS_P##count)>(Address(k_##symbol))(STASIS_A##count);  \
  }
#include "agent/cuda/hooks.def"

#define STASIS_HOOK_UNGATED(symbol) extern "C" fn::symbol symbol;
#define STASIS_HOOK_UNGATED_PTSZ(symbol) extern "C" fn::symbol symbol##_ptsz;
#include "agent/cuda/hooks.def"

namespace {

template <class F>
void* Pointer(F* function) {
  return reinterpret_cast<void*>(function);
}

#define STASIS_NONE(symbol) nullptr
#define STASIS_OURS(symbol) Pointer(&::stasis::agent::symbol)
#define STASIS_POINT_Lookup STASIS_NONE
#define STASIS_POINT_Init STASIS_NONE
#define STASIS_POINT_Query STASIS_NONE
#define STASIS_POINT_Held STASIS_OURS
#define STASIS_POINT_Poll STASIS_OURS
#define STASIS_POINT_Wait STASIS_NONE
#define STASIS_POINT_Checkpoint STASIS_NONE
#define STASIS_POINT_Object STASIS_OURS
#define STASIS_POINT_Memory STASIS_OURS
#define STASIS_POINT_Submit STASIS_OURS

// The kinds in driver_functions.def, as values of Function::vital.
// NOLINTBEGIN(readability-identifier-naming)
constexpr bool Lookup = false, Init = false, Query = false, Held = false, Poll = true, Wait = false,
               Checkpoint = false, Object = false, Memory = true, Submit = true, Same = false;
// NOLINTEND(readability-identifier-naming)

}  // namespace

Function g_functions[kFunctionCount] = {
#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) \
  {#symbol, STASIS_POINT_##kind(symbol), kind},
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments) \
  {#symbol, STASIS_POINT_##kind(symbol), kind},                           \
      {#symbol "_ptsz", STASIS_POINT_##kind(symbol##_ptsz), kind},
#define STASIS_DRIVER_FN_PTDS(symbol, since, kind, parameters, arguments) \
  {#symbol, STASIS_POINT_##kind(symbol), kind},                           \
      {#symbol "_ptds", STASIS_POINT_##kind(symbol##_ptds), kind},
#include "abi/cuda/driver_functions.def"
#define STASIS_HOOK_RAW(symbol, count) {#symbol, STASIS_OURS(symbol), true},
#include "agent/cuda/hooks.def"
#define STASIS_HIP_SYMBOL(symbol, kind) {#symbol, nullptr, kind},
#include "agent/hip/symbols.def"
};

void CompleteFunctionTable() {
  static std::atomic<bool> complete{false};
  if (complete.load(std::memory_order_acquire)) return;
#define STASIS_HOOK_UNGATED(symbol) \
  __atomic_store_n(&g_functions[k_##symbol].ours, STASIS_OURS(symbol), __ATOMIC_RELAXED);
#define STASIS_HOOK_UNGATED_PTSZ(symbol) STASIS_HOOK_UNGATED(symbol##_ptsz)
#define STASIS_HOOK_DEVICE(symbol, count, device, other) STASIS_HOOK_UNGATED(symbol)
#include "agent/cuda/hooks.def"
  CompleteHipTable();
  complete.store(true, std::memory_order_release);
}

}  // namespace stasis::agent
