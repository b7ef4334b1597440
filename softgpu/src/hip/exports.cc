// The exported symbols of libamdhip64, generated from abi/hip/functions.def, and their addresses
// for hipGetProcAddress.

#include <iterator>
#include <string_view>

#include "entry.h"
#include "hip/face.h"

namespace softgpu::hip {
namespace {

// Calls `f`. Except for look-ups, initialises the runtime first if necessary, and keeps a failure
// as the thread's last error.
template <class F>
hipError_t EnterHip(const char* symbol, Kind kind, bool per_thread, F f) {
  hipError_t result = CUDA_SUCCESS;
  if (!driver().initialised.load()) {
    driver().face.store(Face::kHip);
    if (kind != Kind::Lookup && kind != Kind::Init) result = softgpu::api::cuInit(0);
  }
  if (result == CUDA_SUCCESS) result = Enter(symbol, kind, per_thread, f);
  if (result != CUDA_SUCCESS && kind != Kind::Lookup) SetLastError(result);
  return result;
}

}  // namespace

extern "C" {

// Defines one function for each driver function. HIP's symbols are aliases of these.
#define SOFTGPU_HIP_DRIVER(name, symbol, kind, per_thread, parameters, arguments)            \
  __attribute__((visibility("hidden"))) CUresult name parameters {                           \
    return EnterHip(#symbol, Kind::kind, per_thread, [&] { return api::symbol arguments; }); \
  }
#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) \
  SOFTGPU_HIP_DRIVER(softgpu_hip_##symbol, symbol, kind, false, parameters, arguments)
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments)              \
  SOFTGPU_HIP_DRIVER(softgpu_hip_##symbol, symbol, kind, false, parameters, arguments) \
  SOFTGPU_HIP_DRIVER(softgpu_hip_##symbol##_spt, symbol, kind, true, parameters, arguments)
#define STASIS_DRIVER_FN_PTDS STASIS_DRIVER_FN_PTSZ
#include "abi/cuda/driver_functions.def"

#define SOFTGPU_EXPORT __attribute__((visibility("default")))
#define STASIS_HIP_SAME(symbol, driver) \
  SOFTGPU_EXPORT __attribute__((alias("softgpu_hip_" #driver))) stasis::hip::fn::symbol symbol;
#define STASIS_HIP_SAME_SPT(symbol, driver)                            \
  STASIS_HIP_SAME(symbol, driver)                                      \
  SOFTGPU_EXPORT __attribute__((alias("softgpu_hip_" #driver "_spt"))) \
  stasis::hip::fn::symbol symbol##_spt;
#define SOFTGPU_HIP_DEFINE(exported, symbol, kind, per_thread, parameters, arguments)        \
  SOFTGPU_EXPORT hipError_t exported parameters {                                            \
    return EnterHip(#symbol, Kind::kind, per_thread, [&] { return own::symbol arguments; }); \
  }
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) \
  SOFTGPU_HIP_DEFINE(symbol, symbol, kind, false, parameters, arguments)
#define STASIS_HIP_OWN_SPT(symbol, kind, parameters, arguments)          \
  SOFTGPU_HIP_DEFINE(symbol, symbol, kind, false, parameters, arguments) \
  SOFTGPU_HIP_DEFINE(symbol##_spt, symbol, kind, true, parameters, arguments)
#define STASIS_HIP_OTHER(symbol, kind, count)                                             \
  SOFTGPU_EXPORT hipError_t symbol() {                                                    \
    return EnterHip(#symbol, Kind::kind, false, [] { return CUDA_ERROR_NOT_SUPPORTED; }); \
  }
#define STASIS_HIP_OTHER_SPT(symbol, kind, count) \
  STASIS_HIP_OTHER(symbol, kind, count)           \
  STASIS_HIP_OTHER(symbol##_spt, kind, count)
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) \
  SOFTGPU_EXPORT result symbol parameters { return own::symbol arguments; }
#include "abi/hip/functions.def"

}  // extern "C"

namespace {

struct Symbol {
  std::string_view name;
  void* legacy;
  void* per_thread;  // null if there is no such variant
};

template <class F>
void* Pointer(F* function) {
  return reinterpret_cast<void*>(function);
}

const Symbol kSymbols[] = {
#define STASIS_HIP_SAME(symbol, driver) {#symbol, Pointer(&::softgpu::hip::symbol), nullptr},
#define STASIS_HIP_SAME_SPT(symbol, driver) \
  {#symbol, Pointer(&::softgpu::hip::symbol), Pointer(&::softgpu::hip::symbol##_spt)},
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) STASIS_HIP_SAME(symbol, )
#define STASIS_HIP_OWN_SPT(symbol, kind, parameters, arguments) STASIS_HIP_SAME_SPT(symbol, )
#define STASIS_HIP_OTHER(symbol, kind, count) STASIS_HIP_SAME(symbol, )
#define STASIS_HIP_OTHER_SPT(symbol, kind, count) STASIS_HIP_SAME_SPT(symbol, )
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) STASIS_HIP_SAME(symbol, )
#include "abi/hip/functions.def"
};

}  // namespace

namespace own {

hipError_t hipGetProcAddress(const char* symbol, void** pfn, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  constexpr uint64_t kKnown =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || pfn == nullptr || flags >= kKnown) return CUDA_ERROR_INVALID_VALUE;
  std::string_view name = symbol;
  // Since HIP 6 these names mean the latest version, as in its header.
  if (version >= 60000000 && name == "hipGetDeviceProperties") name = "hipGetDevicePropertiesR0600";
  if (version >= 60000000 && name == "hipChooseDevice") name = "hipChooseDeviceR0600";
  const Symbol* found = nullptr;
  for (const Symbol& known : kSymbols) {
    if (known.name == name) found = &known;
  }
  *pfn = nullptr;
  if (found != nullptr) {
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    *pfn = per_thread && found->per_thread != nullptr ? found->per_thread : found->legacy;
  }
  if (status != nullptr) {
    *status = found != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace own
}  // namespace softgpu::hip
