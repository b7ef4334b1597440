#include "service/gpu_usage.h"

#include <algorithm>
#include <memory>

#include "coordinator/agents.h"
#include "coordinator/operations.h"
#include "device/device_control.h"
#include "process/tree.h"

namespace stasis::service {
namespace {

bool HasDriverLoaded(process::HostPid pid) {
  auto mappings = process::ReadMappings(pid);
  return mappings && std::any_of(mappings->begin(), mappings->end(), [](const auto& mapping) {
           return mapping.path.find("/libcuda.so") != std::string::npos;
         });
}

void Add(const Paths& paths, const device::DeviceProcess& process, GpuUsage& usage) {
  const bool checkpointed = process.state == device::ProcessState::kCheckpointed;
  auto remembered = checkpointed ? coordinator::LoadSuspended(paths, process.id)
                                 : coordinator::LoadKeptContext(paths, process.id);
  const bool context_kept = !checkpointed && remembered;
  const bool suspended = checkpointed || context_kept;
  usage.suspended = usage.uses_gpu ? usage.suspended && suspended : suspended;
  usage.uses_gpu = true;
  usage.failed |= process.state == device::ProcessState::kFailed;
  usage.context_kept |= context_kept;
  if (!checkpointed) usage.gpu_bytes += process.device_bytes;
  if (suspended && remembered) usage.suspended_bytes += remembered->device_bytes;
}

}  // namespace

GpuUsages LookAtGpus(const Paths& paths, const config::Settings& settings,
                     const std::vector<jobs::Job>& jobs) {
  GpuUsages usages;
  std::unique_ptr<device::DeviceControl> control;
  auto snapshot = process::Snapshot::Take();
  if (!snapshot) {
    usages.problem = snapshot.error().ToString();
    return usages;
  }
  for (const jobs::Job& job : jobs) {
    if (job.state != jobs::State::kRunning || !job.processes) continue;
    auto tree = snapshot->Tree(job.processes->root.pid);
    if (!tree || std::none_of(tree->members.begin(), tree->members.end(),
                              [](const auto& member) { return HasDriverLoaded(member.id.pid); })) {
      continue;
    }
    if (control == nullptr)
      control = device::MakeDeviceControl(coordinator::ControlOptionsOf(settings));
    auto processes = control->FindProcesses(*tree);
    if (!processes) {
      usages.problem = processes.error().ToString();
      continue;
    }
    for (const auto& process : *processes) Add(paths, process, usages.by_job[job.id]);
  }
  return usages;
}

}  // namespace stasis::service
