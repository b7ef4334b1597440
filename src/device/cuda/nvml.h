// NVIDIA's management library, if installed: free memory of a GPU and memory used by each process.
// The driver itself would need a context for this, which costs half a GiB of GPU memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stasis::device::cuda {

class Nvml {
 public:
  // Opens and initialises the library. Returns nothing if either step fails.
  static std::optional<Nvml> Open();

  struct Memory {
    uint64_t total_bytes = 0;
    uint64_t free_bytes = 0;
  };
  // `uuid` as "GPU-…".
  std::optional<Memory> MemoryOf(const std::string& uuid) const;

  // Returns the GPU's persistence mode.
  std::optional<bool> PersistenceOf(const std::string& uuid) const;

  struct User {
    pid_t pid = 0;
    uint64_t bytes = 0;  // 0 if NVML does not report it (in a container, under MIG)
  };
  // Returns the processes with a context on the GPU. The pids belong to the driver's pid namespace,
  // so in a container they may match no visible process.
  std::vector<User> UsersOf(const std::string& uuid) const;

 private:
  Nvml() = default;
  struct Functions;
  const Functions* fn_ = nullptr;
};

}  // namespace stasis::device::cuda
