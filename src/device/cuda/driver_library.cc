#include "device/cuda/driver_library.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <initializer_list>
#include <utility>

#include "abi/driver_kinds.h"
#include "abi/hip/as_driver.h"
#include "base/file.h"
#include "device/hip/hip_driver.h"

namespace stasis::device::cuda {
namespace {

using stasis::cuda::CUDA_SUCCESS;
using stasis::cuda::CUresult;

// The functions cuCheckpointProcess* exist since CUDA 12.8 (driver 570).
constexpr int kCheckpointSince = 12080;

void* Lookup(void* library, const char* symbol) { return ::dlsym(library, symbol); }

void* FindInCuda(void* library, const char* symbol) {
  if (void* address = ::dlsym(library, symbol)) return address;
  // Known drivers export every function as a symbol. cuGetProcAddress is a fallback.
  auto ask =
      reinterpret_cast<stasis::cuda::fn::cuGetProcAddress*>(::dlsym(library, "cuGetProcAddress"));
  void* address = nullptr;
  if (ask == nullptr || ask(symbol, &address, kCheckpointSince, 0) != CUDA_SUCCESS) return nullptr;
  return address;
}

// Returns the version of the loaded kernel module, "580.159.04". The user-space library has the
// same version: cuInit fails if they differ.
std::string NvidiaVersion() {
  auto text = ReadFile("/sys/module/nvidia/version", 256);
  if (!text) return {};
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return *text;
}

// Sets `driver.kind` and `driver.version`.
void FindKind(void* library, DriverLibrary& driver) {
  for (const abi::DriverKind& kind : abi::kDriverKinds) {
    if (kind.is_hip != driver.hip) continue;
    if (kind.version_symbol == nullptr) {
      driver.kind = &kind;
      driver.version = driver.hip ? hip::KernelDriverVersion() : NvidiaVersion();
      return;
    }
    using Version = const char*();
    if (auto version = reinterpret_cast<Version*>(::dlsym(library, kind.version_symbol))) {
      driver.kind = &kind;
      driver.version = version();
      return;
    }
  }
}

std::string DriverWords(const DriverFunctions& fn, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (fn.cuGetErrorName != nullptr) fn.cuGetErrorName(result, &name);
  if (fn.cuGetErrorString != nullptr) fn.cuGetErrorString(result, &text);
  return std::string(name != nullptr ? name : "CUresult " + std::to_string(result)) + ": " +
         (text != nullptr ? text : "no description");
}

void RememberFile(void* library, DriverLibrary& driver) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return;
  struct stat st;
  if (::stat(map->l_name, &st) != 0) return;
  driver.path = map->l_name;
  driver.file = FileId::Of(st);
}

std::string TooOld(const DriverLibrary& driver) {
  std::string which = driver.version.empty() ? "this driver" : "driver " + driver.version;
  return which + " (CUDA " + std::to_string(driver.api_version / 1000) + "." +
         std::to_string(driver.api_version % 1000 / 10) +
         ") has no checkpoint interface; it came with driver 570 (CUDA 12.8). Drivers 550 to 569 "
         "offer it only through NVIDIA's own cuda-checkpoint program";
}

void* Open(const char* name) { return ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

// Returns null, with the loader's reason in `why`, if there is no driver.
void* OpenLibrary(const std::string& path, std::string& why) {
  void* library = Open(path.empty() ? "libcuda.so.1" : path.c_str());
  if (library != nullptr) return library;
  const char* reason = ::dlerror();
  why = reason != nullptr ? reason : "";
  if (!path.empty()) return nullptr;
  for (const char* name : stasis::hip::as_driver::kLibraries) {
    if (library = Open(name); library != nullptr) return library;
  }
  return nullptr;
}

}  // namespace

void* DriverLibrary::Find(const char* symbol) const {
  return hip ? stasis::hip::as_driver::Find(handle, Lookup, symbol) : FindInCuda(handle, symbol);
}

DriverLibrary OpenDriver(const std::string& path) {
  DriverLibrary driver;
  std::string why;
  void* library = OpenLibrary(path, why);
  if (library == nullptr) {
    driver.why_not = "no CUDA driver is installed: " + why;
    return driver;
  }
  driver.handle = library;
  driver.hip = ::dlsym(library, stasis::hip::as_driver::kMarkSymbol) != nullptr;
  if (driver.hip && !stasis::hip::as_driver::Resolve(library, Lookup)) {
    driver.why_not = "this version of HIP is too old: ROCm 6.0 or newer is needed";
    return driver;
  }
  RememberFile(library, driver);
#define STASIS_DEVICE_RESOLVE(symbol) \
  driver.fn.symbol = reinterpret_cast<decltype(driver.fn.symbol)>(driver.Find(#symbol));
  STASIS_DEVICE_BASIC_FUNCTIONS(STASIS_DEVICE_RESOLVE)
  STASIS_DEVICE_NEWER_FUNCTIONS(STASIS_DEVICE_RESOLVE)
#undef STASIS_DEVICE_RESOLVE

  for (const auto& [symbol, present] : std::initializer_list<std::pair<const char*, bool>>{
#define STASIS_DEVICE_PRESENT(name) {#name, driver.fn.name != nullptr},
           STASIS_DEVICE_BASIC_FUNCTIONS(STASIS_DEVICE_PRESENT)
#undef STASIS_DEVICE_PRESENT
       }) {
    if (present) continue;
    driver.why_not = driver.hip ? std::string("libamdhip64 is not a known HIP runtime: it lacks ")
                                : std::string("libcuda.so.1 is not a known CUDA driver: it lacks ");
    driver.why_not += symbol;
    return driver;
  }
  driver.opened = true;
  FindKind(library, driver);
  driver.fn.cuDriverGetVersion(&driver.api_version);

  if (CUresult result = driver.fn.cuInit(0); result != CUDA_SUCCESS) {
    driver.why_not = "the driver cannot start: " + DriverWords(driver.fn, result);
    return driver;
  }
  driver.initialised = true;
  driver.can_checkpoint = driver.api_version >= kCheckpointSince &&
                          driver.fn.cuCheckpointProcessGetState != nullptr &&
                          driver.fn.cuCheckpointProcessGetRestoreThreadId != nullptr &&
                          driver.fn.cuCheckpointProcessLock != nullptr &&
                          driver.fn.cuCheckpointProcessCheckpoint != nullptr &&
                          driver.fn.cuCheckpointProcessRestore != nullptr &&
                          driver.fn.cuCheckpointProcessUnlock != nullptr;
  if (!driver.can_checkpoint) driver.why_not = driver.hip ? hip::kNoCheckpoint : TooOld(driver);
  return driver;
}

bool WasReplaced(const DriverLibrary& driver) {
  struct stat st;
  return !driver.path.empty() &&
         (::stat(driver.path.c_str(), &st) != 0 || !(FileId::Of(st) == driver.file));
}

}  // namespace stasis::device::cuda
