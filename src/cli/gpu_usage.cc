#include "cli/gpu_usage.h"

#include <algorithm>
#include <memory>

#include "coordinator/suspended.h"
#include "device/device_control.h"
#include "process/tree.h"

namespace stasis::cli {
namespace {

bool HasDriverLoaded(process::HostPid pid) {
  auto mappings = process::ReadMappings(pid);
  return mappings && std::any_of(mappings->begin(), mappings->end(), [](const auto& mapping) {
           return mapping.path.find("/libcuda.so") != std::string::npos;
         });
}

void Add(const Paths& paths, const device::DeviceProcess& process, GpuUsage& usage) {
  bool suspended = process.state == device::ProcessState::kCheckpointed;
  usage.suspended = usage.uses_gpu ? usage.suspended && suspended : suspended;
  usage.uses_gpu = true;
  if (!suspended) usage.gpu_bytes += process.device_bytes;
  auto remembered = suspended ? coordinator::LoadSuspended(paths, process.id) : std::nullopt;
  if (remembered) usage.suspended_bytes += remembered->device_bytes;
}

}  // namespace

GpuUsages LookAtGpus(const Paths& paths, const std::vector<jobs::Job>& jobs) {
  GpuUsages usages;
  std::unique_ptr<device::DeviceControl> control;
  for (const jobs::Job& job : jobs) {
    if (job.state != jobs::State::kRunning || !job.processes) continue;
    auto tree = process::ReadTree(job.processes->root.pid);
    if (!tree || std::none_of(tree->members.begin(), tree->members.end(),
                              [](const auto& member) { return HasDriverLoaded(member.id.pid); })) {
      continue;
    }
    if (control == nullptr) control = device::MakeDeviceControl({});
    auto processes = control->FindProcesses(*tree);
    if (!processes) {
      usages.problem = processes.error().ToString();
      continue;
    }
    for (const auto& process : *processes) Add(paths, process, usages.by_job[job.id]);
  }
  return usages;
}

}  // namespace stasis::cli
