// Names of errors, and look-up of functions by name and version.

#include <string.h>

#include <string_view>

#include "abi/cuda/driver_functions.h"
#include "api.h"
#include "driver.h"

namespace softgpu {
namespace {

namespace unsupported {
#define STASIS_DRIVER_UNSUPPORTED(symbol, since) extern "C" CUresult symbol();
#define STASIS_DRIVER_UNSUPPORTED_PTSZ(symbol, since) \
  extern "C" CUresult symbol();                       \
  extern "C" CUresult symbol##_ptsz();
#include "abi/cuda/driver_functions.def"
}  // namespace unsupported

struct Symbol {
  std::string_view name;
  int since;
  void* legacy;
  void* per_thread;  // null if there is no such variant
};

template <class F>
void* Pointer(F* function) {
  return reinterpret_cast<void*>(function);
}

const Symbol kSymbols[] = {
#define STASIS_DRIVER_FN(symbol, since, kind, parameters, arguments) \
  {#symbol, since, Pointer(&stasis::cuda::symbol), nullptr},
#define STASIS_DRIVER_FN_PTSZ(symbol, since, kind, parameters, arguments) \
  {#symbol, since, Pointer(&stasis::cuda::symbol), Pointer(&stasis::cuda::symbol##_ptsz)},
#define STASIS_DRIVER_FN_PTDS(symbol, since, kind, parameters, arguments) \
  {#symbol, since, Pointer(&stasis::cuda::symbol), Pointer(&stasis::cuda::symbol##_ptds)},
#define STASIS_DRIVER_UNSUPPORTED(symbol, since) \
  {#symbol, since, Pointer(&unsupported::symbol), nullptr},
#define STASIS_DRIVER_UNSUPPORTED_PTSZ(symbol, since) \
  {#symbol, since, Pointer(&unsupported::symbol), Pointer(&unsupported::symbol##_ptsz)},
#include "abi/cuda/driver_functions.def"
};

// Returns the name without its ABI version: cuMemAlloc_v2 is requested as cuMemAlloc.
constexpr std::string_view Base(std::string_view symbol) {
  size_t at = symbol.rfind("_v");
  if (at == symbol.npos || at + 2 == symbol.size()) return symbol;
  for (char c : symbol.substr(at + 2)) {
    if (c < '0' || c > '9') return symbol;
  }
  return symbol.substr(0, at);
}

struct Result {
  CUresult code;
  const char* name;
  const char* text;
};
constexpr Result kResults[] = {
#define STASIS_CU_RESULT(name, value, text) {name, #name, text},
#include "abi/cuda/driver_results.def"
};

const Result* Find(CUresult code) {
  for (const Result& result : kResults) {
    if (result.code == code) return &result;
  }
  return nullptr;
}

}  // namespace

namespace api {

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Result* result = Find(error);
  *name = result != nullptr ? result->name : nullptr;
  return result != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Result* result = Find(error);
  *text = result != nullptr ? result->text : nullptr;
  return result != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetExportTable(const void** table, const CUuuid*) {
  if (table != nullptr) *table = nullptr;
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kBoth =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || pfn == nullptr || flags >= kBoth || version > DriverVersion()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *pfn = nullptr;
  const Symbol* best = nullptr;
  bool exists = false;
  bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  for (const Symbol& known : kSymbols) {
    if (Base(known.name) != symbol) continue;
    exists = true;
    int since =
        per_thread && known.per_thread != nullptr ? std::max(known.since, 7000) : known.since;
    if (since <= version && (best == nullptr || known.since > best->since)) best = &known;
  }
  if (best != nullptr) *pfn = per_thread && best->per_thread ? best->per_thread : best->legacy;
  if (status != nullptr) {
    *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : exists        ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int version, cuuint64_t flags) {
  CUresult r = cuGetProcAddress_v2(symbol, pfn, version, flags, nullptr);
  return r == CUDA_SUCCESS && *pfn == nullptr ? CUDA_ERROR_NOT_FOUND : r;
}

}  // namespace api
}  // namespace softgpu
