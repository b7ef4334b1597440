#include "device/cuda/nvml.h"

#include <dlfcn.h>

namespace stasis::device::cuda {
namespace {

// The parts of NVML's binary interface used here.
using NvmlDevice = struct NvmlDeviceOpaque*;
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr uint64_t kNotAvailable = ~0ull;

struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
// nvmlProcessInfo_t for the _v2 and _v3 functions.
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_gpu_memory;
  unsigned gpu_instance;
  unsigned compute_instance;
};

}  // namespace

struct Nvml::Functions {
  int (*init)();
  int (*handle_by_uuid)(const char*, NvmlDevice*);
  int (*memory)(NvmlDevice, NvmlMemory*);
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*);  // may be null
  int (*persistence)(NvmlDevice, int*);                   // may be null; 0 or 1
};

std::optional<Nvml> Nvml::Open() {
  static const Functions* const functions = []() -> const Functions* {
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) return nullptr;
    static Functions fn;
    auto find = [library](auto& pointer, const char* symbol) {
      pointer =
          reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(::dlsym(library, symbol));
      return pointer != nullptr;
    };
    if (!find(fn.init, "nvmlInit_v2") || !find(fn.handle_by_uuid, "nvmlDeviceGetHandleByUUID") ||
        !find(fn.memory, "nvmlDeviceGetMemoryInfo")) {
      return nullptr;
    }
    if (!find(fn.processes, "nvmlDeviceGetComputeRunningProcesses_v3")) {
      find(fn.processes, "nvmlDeviceGetComputeRunningProcesses_v2");
    }
    find(fn.persistence, "nvmlDeviceGetPersistenceMode");
    return fn.init() == kSuccess ? &fn : nullptr;
  }();
  if (functions == nullptr) return std::nullopt;
  Nvml nvml;
  nvml.fn_ = functions;
  return nvml;
}

std::optional<Nvml::Memory> Nvml::MemoryOf(const std::string& uuid) const {
  NvmlDevice device;
  NvmlMemory memory = {};
  if (fn_->handle_by_uuid(uuid.c_str(), &device) != kSuccess ||
      fn_->memory(device, &memory) != kSuccess) {
    return std::nullopt;
  }
  return Memory{memory.total, memory.free};
}

std::optional<bool> Nvml::PersistenceOf(const std::string& uuid) const {
  NvmlDevice device;
  int mode = 0;
  if (fn_->persistence == nullptr || fn_->handle_by_uuid(uuid.c_str(), &device) != kSuccess ||
      fn_->persistence(device, &mode) != kSuccess) {
    return std::nullopt;
  }
  return mode != 0;
}

std::vector<Nvml::User> Nvml::UsersOf(const std::string& uuid) const {
  NvmlDevice device;
  if (fn_->processes == nullptr || fn_->handle_by_uuid(uuid.c_str(), &device) != kSuccess)
    return {};
  // Processes may appear between the two calls, so the buffer has spare room.
  std::vector<NvmlProcess> found(64);
  int result = kInsufficientSize;
  unsigned count = 0;
  for (int i = 0; i < 4 && result == kInsufficientSize; ++i) {
    count = static_cast<unsigned>(found.size());
    result = fn_->processes(device, &count, found.data());
    if (result == kInsufficientSize) found.resize(count + 64);
  }
  std::vector<User> users;
  if (result != kSuccess) return users;
  for (unsigned i = 0; i < count && i < found.size(); ++i) {
    uint64_t bytes = found[i].used_gpu_memory == kNotAvailable ? 0 : found[i].used_gpu_memory;
    users.push_back({static_cast<pid_t>(found[i].pid), bytes});
  }
  return users;
}

}  // namespace stasis::device::cuda
