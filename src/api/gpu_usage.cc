#include "api/gpu_usage.h"

#include <algorithm>
#include <memory>

#include "device/cuda/device_files.h"
#include "device/device_control.h"
#include "gpu_state/agents.h"
#include "gpu_state/gpu_shards.h"
#include "gpu_state/services.h"
#include "gpu_state/suspended.h"
#include "process/tree.h"

namespace stasis::api {
namespace {

bool HasDriverLoaded(process::HostPid pid) {
  auto mappings = process::ReadMappings(pid);
  return mappings && std::any_of(mappings->begin(), mappings->end(), [](const auto& mapping) {
           return device::cuda::IsDriverLibrary(mapping.path);
         });
}

void Add(const Paths& paths, const device::DeviceProcess& process, SpilledData& spilled,
         GpuUsage& usage) {
  const bool checkpointed = process.state == device::ProcessState::kCheckpointed;
  auto remembered = checkpointed ? gpu_state::LoadSuspended(paths, process.id)
                                 : gpu_state::LoadKeptContext(paths, process.id);
  const bool context_kept = !checkpointed && remembered;
  const bool suspended = checkpointed || context_kept;
  usage.suspended = usage.uses_gpu ? usage.suspended && suspended : suspended;
  usage.uses_gpu = true;
  usage.failed |= process.state == device::ProcessState::kFailed;
  usage.context_kept |= context_kept;
  if (!checkpointed) usage.gpu_bytes += process.device_bytes;
  if (suspended && remembered) {
    usage.suspended_bytes += remembered->device_bytes;
    usage.spilled_bytes += std::min(remembered->device_bytes, spilled.Of(process.id));
  }
}

}  // namespace

uint64_t SpilledData::Of(const process::ProcessId& id) {
  if (!bytes_) Read();
  auto found = bytes_->find(id);
  return found == bytes_->end() ? 0 : found->second;
}

void SpilledData::Read() {
  bytes_.emplace();
  auto store = gpu_state::ExistingArenas(paths_);
  auto arenas = store ? store->List() : Result<std::vector<dataplane::ArenaInfo>>();
  for (const auto& arena : arenas.value_or(std::vector<dataplane::ArenaInfo>())) {
    if (arena.in_memory || arena.kept || !arena.record) continue;
    (*bytes_)[arena.record->key.process] += arena.record->data_bytes;
  }
}

bool UsesGpuDriver(const process::ProcessTree& tree) {
  return std::any_of(tree.members.begin(), tree.members.end(),
                     [](const auto& member) { return HasDriverLoaded(member.id.pid); });
}

GpuUsages ReadGpuUsages(const Paths& paths, const config::Settings& settings,
                        const std::map<std::string, process::HostPid>& roots) {
  GpuUsages usages;
  std::unique_ptr<device::DeviceControl> control;
  SpilledData spilled(paths);
  auto snapshot = process::Snapshot::Take();
  if (!snapshot) {
    usages.problem = snapshot.error().ToString();
    return usages;
  }
  for (const auto& [name, root] : roots) {
    auto tree = snapshot->Tree(root);
    if (!tree || !UsesGpuDriver(*tree)) continue;
    if (control == nullptr) {
      control = device::MakeDeviceControl(gpu_state::ControlOptionsOf(paths, settings));
    }
    auto processes = control->FindProcesses(*tree);
    if (!processes) {
      usages.problem = processes.error().ToString();
      continue;
    }
    for (const auto& process : *processes) Add(paths, process, spilled, usages.by_name[name]);
  }
  return usages;
}

GpuUsages ReadGpuUsages(const Paths& paths, const config::Settings& settings,
                        const std::vector<jobs::Job>& jobs) {
  std::map<std::string, process::HostPid> roots;
  for (const jobs::Job& job : jobs) {
    if (job.state != jobs::State::kRunning || !job.processes) continue;
    roots[job.id] = job.processes->root.pid;
  }
  return ReadGpuUsages(paths, settings, roots);
}

}  // namespace stasis::api
