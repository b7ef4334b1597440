#include "gpu_state/host_memory.h"

#include <fmt/format.h>

#include "dataplane/arena_place.h"
#include "process/control_group.h"

namespace stasis::gpu_state {

Status CheckHostMemory(uint64_t bytes, process::HostPid pid) {
  return CheckHostMemory(dataplane::MemoryRoom{bytes, bytes}, pid);
}

Status CheckHostMemory(const dataplane::MemoryRoom& needed, process::HostPid pid) {
  uint64_t bytes = needed.machine_bytes;
  uint64_t available = dataplane::MemoryAvailable();
  std::string where = "available";
  const process::MemoryLeft group = process::MemoryLeftInControlGroups(pid);
  if (group.beyond_reserve() < needed.groups_bytes) {
    bytes = needed.groups_bytes;
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

bool ShareMemoryLimit(process::HostPid one, process::HostPid other) {
  return process::MemoryLeftInControlGroups(one).limit_file ==
         process::MemoryLeftInControlGroups(other).limit_file;
}

}  // namespace stasis::gpu_state
