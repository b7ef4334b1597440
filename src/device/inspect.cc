#include "device/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/file.h"
#include "process/memory.h"

namespace stasis::device {
namespace {

using process::HostPid;

std::string ProcPath(HostPid pid, const char* name) {
  return fmt::format("/proc/{}/{}", pid.value, name);
}

// The open and mapped files of a process, and the names of its unix sockets.
struct Held {
  std::string where;  // "fd 41", "a mapping"
  std::string path;   // "@/tmp/nccl-socket-0-8f1c"
};

Result<std::vector<Held>> ReadHeld(HostPid pid) {
  // Maps inodes to names, for all unix sockets of the process's network namespace.
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

// Returns true if the process was started with NAME=VALUE in its environment.
bool StartedWith(HostPid pid, std::string_view setting) {
  const auto environment = process::ReadEnvironment(pid).value_or(std::vector<std::string>());
  return std::find(environment.begin(), environment.end(), setting) != environment.end();
}

// Measured with NCCL 2.28 on driver 580: the only transport that survives a restore is the one with
// neither peer memory nor cuMem.
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
    "start it with `stasis run`, whose agent saves the memory that NCCL shares, or with "
    "NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0: the driver cannot restore memory that NCCL maps from "
    "other processes";
constexpr const char* kNcclAgentsHint =
    "start it with NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0 in its environment; the driver can then "
    "save its memory without the agent";
constexpr const char* kFabricHint = "the driver cannot checkpoint fabric memory";
constexpr Rule kRules[] = {
    // The proxy of a communicator, through which NCCL passes descriptors of exported memory (since
    // 2.19).
    {"@/tmp/nccl-socket-", kNccl, kNcclHint, kNcclAgentsHint, NcclIsRestorable},
    {"/tmp/nccl-socket-", kNccl, kNcclHint, kNcclAgentsHint, NcclIsRestorable},
    // NCCL's shared-memory transport.
    {"/dev/shm/nccl-", kNccl, kNcclHint, kNcclAgentsHint, NcclIsRestorable},
    {"/dev/nvidia-caps-imex-channels/", "shares GPU memory between machines (IMEX)", kFabricHint,
     kFabricHint, [](HostPid) { return false; }},
};

}  // namespace

Result<std::vector<Finding>> Inspect(HostPid pid) {
  STASIS_ASSIGN(auto held, ReadHeld(pid));
  std::vector<Finding> findings;
  for (const Rule& rule : kRules) {
    bool known = false;  // report each kind of sharing once
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
