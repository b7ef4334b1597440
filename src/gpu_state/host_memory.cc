#include "gpu_state/host_memory.h"

#include <fmt/format.h>

#include "dataplane/arena_place.h"
#include "process/control_group.h"

namespace stasis::gpu_state {

Status CheckHostMemory(uint64_t bytes, process::HostPid pid) {
  uint64_t available = dataplane::MemoryAvailable();
  std::string where = "available";
  const process::MemoryLeft group = process::MemoryLeftInControlGroups(pid);
  if (group.beyond_reserve() < available) {
    available = group.beyond_reserve();
    where =
        fmt::format("left in the control group of process {} ({})", pid.value, group.limit_file);
  }
  if (available >= bytes) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("{} MiB of host memory are needed, but only {} MiB are {}", bytes >> 20,
                          available >> 20, where),
              "free memory, or use --ignore-memory on a machine that gets more memory on demand");
}

}  // namespace stasis::gpu_state
