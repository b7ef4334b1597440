#include "coordinator/host_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/file.h"

namespace stasis::coordinator {
namespace {

uint64_t ReadNumber(const std::string& path, uint64_t otherwise) {
  auto text = ReadFile(path, 4096);
  if (!text || text->empty() || !std::isdigit(static_cast<unsigned char>((*text)[0])))
    return otherwise;
  return std::strtoull(text->c_str(), nullptr, 10);
}

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

// What the tightest control group of a process still allows; UINT64_MAX without a limit. Page cache
// counts as used there and can be given back, so its inactive part is added.
uint64_t ControlGroupMemory(process::HostPid pid) {
  struct Kind {
    const char* line;  // in /proc/PID/cgroup, up to the path
    const char* root;
    const char* limit;
    const char* usage;
  };
  static constexpr Kind kKinds[] = {
      {"0::", "/sys/fs/cgroup", "memory.max", "memory.current"},
      {"0::", "/sys/fs/cgroup/unified", "memory.max", "memory.current"},
      {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
  };
  auto groups = ReadFile(fmt::format("/proc/{}/cgroup", pid.value));
  if (!groups) return UINT64_MAX;
  uint64_t least = UINT64_MAX;
  std::istringstream lines(*groups);
  for (std::string line; std::getline(lines, line);) {
    for (const Kind& kind : kKinds) {
      size_t at = line.find(kind.line);
      if (at == std::string::npos) continue;
      std::string path = line.substr(at + std::strlen(kind.line));
      while (!path.empty()) {
        std::string folder = kind.root + path + "/";
        uint64_t limit = ReadNumber(folder + kind.limit, UINT64_MAX);
        uint64_t usage = ReadNumber(folder + kind.usage, 0);
        if (limit < (1ull << 60)) {
          auto stat = ReadFile(folder + "memory.stat");
          size_t cache = stat ? stat->find("inactive_file ") : std::string::npos;
          if (cache != std::string::npos) {
            usage -=
                std::min<uint64_t>(usage, std::strtoull(stat->c_str() + cache + 14, nullptr, 10));
          }
          least = std::min(least, limit > usage ? limit - usage : 0);
        }
        path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
      }
    }
  }
  return least;
}

}  // namespace

Status CheckHostMemory(uint64_t bytes, process::HostPid pid) {
  uint64_t available = MachineMemory();
  std::string where = "are available";
  if (uint64_t group = ControlGroupMemory(pid); group < available) {
    available = group;
    where = fmt::format("are left to the control group of process {}", pid.value);
  }
  if (available >= bytes) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("{} MiB of host memory are needed, and {} MiB {}", bytes >> 20,
                          available >> 20, where),
              "free memory, or use --ignore-memory on a machine whose memory grows as it is used");
}

}  // namespace stasis::coordinator
