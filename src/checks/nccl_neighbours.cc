#include "checks/nccl_neighbours.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "base/file.h"
#include "criu/image_entries.h"
#include "device/gpu_map.h"
#include "process/search.h"
#include "store/manifest.h"

namespace stasis::checks {
namespace {

using gpu_state::Services;

constexpr std::string_view kSocket = "@/tmp/nccl-socket-";

// Returns the sockets of all NCCL communicators in the network namespace of `pid`, in the form
// "socket:[4711]".
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

struct Rank {
  std::string who;
  std::vector<device::GpuUuid> gpus;
};

void Apply(const device::GpuMap& map, std::vector<device::GpuUuid>& gpus) {
  for (auto& gpu : gpus) gpu = device::Mapped(map, gpu);
}

// Returns the ranks of the target that get new contexts, and removes the sockets of all its
// processes from `sockets`. Several processes may hold one socket, because fork inherits it.
std::vector<Rank> ExtractRanks(const Survey& survey, NewContexts new_contexts,
                               const device::GpuMap& map, std::set<std::string>& sockets) {
  std::vector<Rank> ranks;
  std::set<std::string> own;
  for (const auto& stat : survey.members()) {
    auto files = process::ReadOpenFiles(stat.id.pid);
    if (!files) continue;
    bool holds = false;
    for (const auto& file : *files) {
      if (!sockets.contains(file.target)) continue;
      own.insert(file.target);
      holds = true;
    }
    auto p = std::find_if(survey.device_processes.begin(), survey.device_processes.end(),
                          [&](const auto& device_process) { return device_process.id == stat.id; });
    if (!holds || p == survey.device_processes.end()) continue;
    const bool away = p->state == device::ProcessState::kCheckpointed;
    if (away != (new_contexts == NewContexts::kOfSuspended)) continue;
    ranks.push_back({fmt::format("process {}", stat.id.pid.value), p->gpus});
    Apply(map, ranks.back().gpus);
  }
  for (const std::string& socket : own) sockets.erase(socket);
  return ranks;
}

// `sockets` are communicators of other programs. Returns an error if a process that holds one of
// them uses a GPU of `ranks`.
Status Refuse(Services& services, const std::vector<Rank>& ranks,
              const std::set<std::string>& sockets, const std::string& hint) {
  if (ranks.empty() || sockets.empty()) return {};
  process::ProcessTree holders;
  STASIS_ASSIGN(holders.members, process::FindHolders(sockets));
  if (holders.members.empty()) return {};
  // FindProcesses does not return suspended processes, because they use no GPU.
  STASIS_ASSIGN(auto neighbours, services.device->FindProcesses(holders));
  for (const auto& neighbour : neighbours) {
    for (const auto& rank : ranks) {
      auto shared = std::find_first_of(rank.gpus.begin(), rank.gpus.end(), neighbour.gpus.begin(),
                                       neighbour.gpus.end());
      if (shared == rank.gpus.end()) continue;
      return Fail(
          Code::kFailedPrecondition,
          fmt::format("process {} of another job also has an NCCL communicator on GPU {}, like {}: "
                      "if the driver restores contexts of both, they can deadlock, and both "
                      "programs are lost",
                      neighbour.id.pid.value, shared->value, rank.who),
          hint + "; STASIS_TRY_NCCL=1 in the environment skips this check (docs/nccl.md)");
    }
  }
  return {};
}

bool IsCheckSkipped() { return std::getenv("STASIS_TRY_NCCL") != nullptr; }

}  // namespace

Status RefuseNcclNeighbours(Services& services, const Survey& survey, NewContexts new_contexts,
                            const device::GpuMap& map, const std::string& hint) {
  if (survey.device_processes.empty() || IsCheckSkipped()) return {};
  STASIS_ASSIGN(auto sockets, CommunicatorSockets(survey.tree.root().id.pid));
  if (sockets.empty()) return {};
  const auto ranks = ExtractRanks(survey, new_contexts, map, sockets);
  return Refuse(services, ranks, sockets, hint);
}

Result<bool> HasCommunicators(int files_img, uint64_t size_bytes) {
  // In CRIU's images, as in the kernel, the name of an abstract socket begins with a zero byte;
  // /proc/net/unix shows it as '@'.
  const std::string name = '\0' + std::string(kSocket.substr(1));
  bool found = false;
  auto look = [&](const std::string& entry) -> Status {
    found = found || entry.find(name) != std::string::npos;
    return {};
  };
  STASIS_TRY(criu::ReadEntries(files_img, size_bytes, criu::kFilesImage, "files.img", look));
  return found;
}

Status RefuseNcclNeighbours(Services& services, const store::Manifest& manifest,
                            const device::GpuMap& map, const std::string& hint) {
  if (manifest.gpus.empty() || IsCheckSkipped()) return {};
  STASIS_ASSIGN(auto sockets, CommunicatorSockets({::getpid()}));
  std::vector<Rank> ranks;
  for (const auto& p : manifest.processes) {
    if (!p.is_cuda()) continue;
    ranks.push_back({fmt::format("process {} of the image", p.pid), {}});
    for (const auto& uuid : p.gpu_uuids) ranks.back().gpus.push_back({uuid});
    Apply(map, ranks.back().gpus);
  }
  return Refuse(services, ranks, sockets, hint);
}

}  // namespace stasis::checks
