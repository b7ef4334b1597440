#include "device/inspect.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

#include "base/file.h"

namespace stasis::device {
namespace {

using process::HostPid;

std::string ProcPath(HostPid pid, const char* name) {
  return fmt::format("/proc/{}/{}", pid.value, name);
}

// What a process holds open or has mapped, and what its unix sockets are called.
struct Held {
  std::string where;  // "fd 41", "a mapping"
  std::string path;   // "@/tmp/nccl-socket-0-8f1c"
};

Result<std::vector<Held>> ReadHeld(HostPid pid) {
  // inode -> name, of all unix sockets of its network namespace.
  std::map<std::string, std::string> sockets;
  STASIS_ASSIGN(std::string unix_sockets, ReadFile(ProcPath(pid, "net/unix")));
  std::istringstream lines(unix_sockets);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string ignored, inode, path;
    for (int i = 0; i < 6; ++i) words >> ignored;
    if (words >> inode >> path) sockets["socket:[" + inode + "]"] = path;
  }
  std::vector<Held> held;
  STASIS_ASSIGN(auto files, process::ReadOpenFiles(pid));
  for (const auto& file : files) {
    auto socket = sockets.find(file.target);
    held.push_back(
        {fmt::format("fd {}", file.fd), socket == sockets.end() ? file.target : socket->second});
  }
  STASIS_ASSIGN(auto mappings, process::ReadMappings(pid));
  for (const auto& mapping : mappings) {
    if (mapping.path.starts_with('/')) held.push_back({"a mapping", mapping.path});
  }
  return held;
}

// The process was started with NAME=VALUE in its environment.
bool StartedWith(HostPid pid, std::string_view setting) {
  auto environment = ReadFile(ProcPath(pid, "environ"));
  if (!environment) return false;
  std::istringstream entries(*environment);
  for (std::string entry; std::getline(entries, entry, '\0');) {
    if (entry == setting) return true;
  }
  return false;
}

// Measured with NCCL 2.28 on driver 580: of all its transports, only the one with neither peer
// memory nor cuMem survives a restore.
bool NcclIsRestorable(HostPid pid) {
  return StartedWith(pid, "NCCL_P2P_DISABLE=1") && StartedWith(pid, "NCCL_CUMEM_ENABLE=0");
}

struct Rule {
  std::string_view prefix;
  const char* what;
  const char* hint;
  const char* agents_hint;
  bool (*harmless)(HostPid);
};
constexpr const char* kNccl = "uses an active NCCL communicator";
constexpr const char* kNcclHint =
    "start it by `stasis run`, whose agent carries what NCCL shares; or with NCCL_P2P_DISABLE=1 "
    "NCCL_CUMEM_ENABLE=0: the driver cannot restore memory that NCCL maps of other processes";
constexpr const char* kNcclAgentsHint =
    "start it with NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0 in its environment: the driver alone "
    "carries it then";
constexpr const char* kFabricHint = "the driver cannot checkpoint fabric memory";
constexpr Rule kRules[] = {
    // A communicator's proxy: how NCCL passes descriptors of exported memory (since 2.19).
    {"@/tmp/nccl-socket-", kNccl, kNcclHint, kNcclAgentsHint, NcclIsRestorable},
    {"/tmp/nccl-socket-", kNccl, kNcclHint, kNcclAgentsHint, NcclIsRestorable},
    // Its shared-memory transport.
    {"/dev/shm/nccl-", kNccl, kNcclHint, kNcclAgentsHint, NcclIsRestorable},
    {"/dev/nvidia-caps-imex-channels/", "shares GPU memory between machines (IMEX)", kFabricHint,
     kFabricHint, [](HostPid) { return false; }},
};

}  // namespace

Result<std::vector<Finding>> Inspect(HostPid pid) {
  STASIS_ASSIGN(auto held, ReadHeld(pid));
  std::vector<Finding> findings;
  for (const Rule& rule : kRules) {
    bool known = false;  // one piece of evidence for each thing is enough
    for (const Finding& finding : findings) known |= finding.what == rule.what;
    for (const Held& one : held) {
      if (known || !one.path.starts_with(rule.prefix)) continue;
      findings.push_back({rule.what, fmt::format("{} is {}", one.where, one.path), rule.hint,
                          rule.agents_hint, !rule.harmless(pid)});
      known = true;
    }
  }
  return findings;
}

}  // namespace stasis::device
