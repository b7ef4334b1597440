#include "gpu_state/host_memory.h"

#include <fmt/format.h>

#include <sstream>

#include "base/file.h"
#include "process/control_group.h"

namespace stasis::gpu_state {
namespace {

uint64_t MachineMemory() {
  auto text = ReadFile("/proc/meminfo");
  if (!text) return UINT64_MAX;
  std::istringstream lines(*text);
  for (std::string key, rest; lines >> key;) {
    uint64_t kibibytes;
    lines >> kibibytes;
    std::getline(lines, rest);
    if (key == "MemAvailable:") return kibibytes << 10;
  }
  return UINT64_MAX;
}

}  // namespace

Status CheckHostMemory(uint64_t bytes, process::HostPid pid) {
  uint64_t available = MachineMemory();
  std::string where = "available";
  const process::MemoryLeft group = process::MemoryLeftInControlGroups(pid);
  if (group.beyond_reserve() < available) {
    available = group.beyond_reserve();
    where =
        fmt::format("left in the control group of process {} ({})", pid.value, group.limit_file);
  }
  if (available >= bytes) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("{} MiB of host memory are needed, and {} MiB are {}", bytes >> 20,
                          available >> 20, where),
              "free memory, or use --ignore-memory on a machine whose memory grows as it is used");
}

}  // namespace stasis::gpu_state
