// NVIDIA's management library, where there is one: how much memory is free and who holds how much,
// which the driver itself would tell only inside a context (half a GiB of GPU memory).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stasis::device::cuda {

class Nvml {
 public:
  // Opens and initialises it; absent when either fails.
  static std::optional<Nvml> Open();

  struct Memory {
    uint64_t total_bytes = 0;
    uint64_t free_bytes = 0;
  };
  // `uuid` as "GPU-…".
  std::optional<Memory> MemoryOf(const std::string& uuid) const;

  // Its persistence mode.
  std::optional<bool> PersistenceOf(const std::string& uuid) const;

  struct User {
    pid_t pid = 0;
    uint64_t bytes = 0;  // 0 where it does not tell (in a container, under MIG)
  };
  // The processes that have a context on the GPU. Their numbers are those of the driver's own pid
  // namespace, so in a container nobody may be recognised.
  std::vector<User> UsersOf(const std::string& uuid) const;

 private:
  Nvml() = default;
  struct Functions;
  const Functions* fn_ = nullptr;
};

}  // namespace stasis::device::cuda
