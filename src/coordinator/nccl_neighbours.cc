#include "coordinator/nccl_neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <sstream>

#include "base/file.h"

namespace stasis::coordinator {
namespace {

constexpr std::string_view kSocket = "@/tmp/nccl-socket-";

// "socket:[4711]" of every communicator in the network namespace of `pid`.
Result<std::set<std::string>> CommunicatorSockets(process::HostPid pid) {
  STASIS_ASSIGN(std::string text, ReadFile(fmt::format("/proc/{}/net/unix", pid.value)));
  std::set<std::string> sockets;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string ignored, inode, path;
    for (int i = 0; i < 6; ++i) words >> ignored;
    if (words >> inode >> path && path.starts_with(kSocket)) {
      sockets.insert("socket:[" + inode + "]");
    }
  }
  return sockets;
}

bool HoldsOneOf(process::HostPid pid, const std::set<std::string>& sockets) {
  auto files = process::ReadOpenFiles(pid);
  if (!files) return false;  // ended, or another user's
  return std::any_of(files->begin(), files->end(),
                     [&](const auto& file) { return sockets.contains(file.target); });
}

// Those of the target that have one, and that an operation would take from the GPU; the sockets of
// all of its processes are taken out of `sockets`. Several may hold one: it is inherited by fork.
std::vector<device::DeviceProcess> TakeRanks(const Survey& survey, Taken taken,
                                             std::set<std::string>& sockets) {
  std::vector<device::DeviceProcess> ranks;
  std::set<std::string> own;
  for (const auto& p : survey.device_processes) {
    auto files = process::ReadOpenFiles(p.id.pid);
    if (!files) continue;
    bool rank = false;
    for (const auto& file : *files) {
      if (!sockets.contains(file.target)) continue;
      own.insert(file.target);
      rank = true;
    }
    const bool stays =
        taken == Taken::kRunning ? p.suspended() : p.state == device::ProcessState::kCheckpointed;
    if (rank && !stays) ranks.push_back(p);
  }
  for (const std::string& socket : own) sockets.erase(socket);
  return ranks;
}

Result<process::ProcessTree> Holders(const Survey& survey, const std::set<std::string>& sockets) {
  process::ProcessTree holders;
  STASIS_ASSIGN(auto names, ListDir("/proc"));
  for (const std::string& name : names) {
    if (name.empty() || !std::all_of(name.begin(), name.end(), ::isdigit)) continue;
    const process::HostPid pid{static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10))};
    if (survey.tree.Contains(pid) || !HoldsOneOf(pid, sockets)) continue;
    if (auto stat = process::ReadStat(pid)) holders.members.push_back(std::move(*stat));
  }
  return holders;
}

}  // namespace

Status RefuseNcclNeighbours(Services& services, const Survey& survey, Taken taken) {
  if (survey.device_processes.empty() || std::getenv("STASIS_TRY_NCCL") != nullptr) return {};
  STASIS_ASSIGN(auto sockets, CommunicatorSockets(survey.tree.root().id.pid));
  if (sockets.empty()) return {};
  const auto ranks = TakeRanks(survey, taken, sockets);
  if (ranks.empty() || sockets.empty()) return {};
  STASIS_ASSIGN(auto holders, Holders(survey, sockets));
  if (holders.members.empty()) return {};
  STASIS_ASSIGN(auto neighbours, services.device->FindProcesses(holders));
  for (const auto& neighbour : neighbours) {
    for (const auto& rank : ranks) {
      auto shared = std::find_first_of(rank.gpus.begin(), rank.gpus.end(), neighbour.gpus.begin(),
                                       neighbour.gpus.end());
      if (shared == rank.gpus.end()) continue;
      return Fail(Code::kUnimplemented,
                  fmt::format("process {} has an NCCL communicator on GPU {}, which process {} of "
                              "another job uses with NCCL too: a suspend of one has cost both "
                              "their contexts",
                              rank.id.pid.value, shared->value, neighbour.id.pid.value),
                  "end the other job, or give the jobs GPUs of their own; STASIS_TRY_NCCL=1 in the "
                  "environment tries it all the same (docs/nccl.md)");
    }
  }
  return {};
}

}  // namespace stasis::coordinator
