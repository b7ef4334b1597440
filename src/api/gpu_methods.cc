// The methods for GPUs: they list GPUs with their processes, and run single steps of the driver.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "abi/driver_kinds.h"
#include "api/methods.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/deadline.h"
#include "base/file.h"
#include "device/device_control.h"
#include "device/gpu_map.h"
#include "gpu_state/agents.h"
#include "gpu_state/services.h"
#include "operations/by_hand.h"

namespace stasis::api {
namespace {

using device::DeviceControl;
using device::GpuMap;
using device::ProcessState;
using operations::ByHand;
using process::HostPid;

// Time limits of a step. Every step has one, because a hung driver would otherwise block a drain of
// the daemon.
constexpr double kDefaultStepS = 3600, kLongestStepS = 86400;

std::optional<HostPid> ParsePid(const std::string& text) {
  HostPid pid;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid.value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && pid.value > 0 ? std::optional(pid) : std::nullopt;
}

Result<HostPid> PidOf(const v1::GpuStepRequest& request) {
  if (auto pid = ParsePid(request.target())) return *pid;
  return FailUsage(fmt::format("\"{}\" is not a process id", Utf8(request.target().substr(0, 64))),
                   "this command works on one process, which is given by its process id");
}

std::unique_ptr<DeviceControl> Control(const Call& call) {
  return device::MakeDeviceControl(gpu_state::ControlOptionsOf(call.paths, call.settings));
}

// Returns true for a process that Stasis has suspended while keeping its context, although the
// driver reports it as running or locked.
bool ContextKept(const Paths& paths, const process::ProcessId& id, ProcessState state) {
  if (state != ProcessState::kRunning && state != ProcessState::kLocked) return false;
  return gpu_state::LoadKeptContext(paths, id).has_value();
}

Result<GpuMap> ParseMap(DeviceControl& device, const std::string& text) {
  if (text.empty()) return GpuMap{};
  STASIS_ASSIGN(auto gpus, device.Gpus());
  return device::ParseGpuMap(text, gpus, gpus);
}

struct Step {
  const char* name;
  Status (*run)(const ByHand& process, const GpuMap& map, const Deadline& deadline);
};
constexpr Step kSteps[] = {
    {"lock",
     [](const ByHand& process, const GpuMap&, const Deadline& deadline) {
       return process.Lock(ByHand::Memory::kAsItIs, deadline);
     }},
    {"checkpoint", [](const ByHand& process, const GpuMap&,
                      const Deadline& deadline) { return process.Checkpoint(deadline); }},
    {"restore", [](const ByHand& process, const GpuMap& map,
                   const Deadline& deadline) { return process.Restore(map, deadline); }},
    {"unlock", [](const ByHand& process, const GpuMap&,
                  const Deadline& deadline) { return process.Unlock(deadline); }},
    {"toggle", [](const ByHand& process, const GpuMap& map,
                  const Deadline& deadline) { return process.Toggle(map, deadline); }},
};

// Runs the requested step of the driver. Returns its duration in seconds.
Result<double> RunStep(const Call& call, DeviceControl& device, HostPid pid,
                       const v1::GpuStepRequest& request) {
  const Step* step = std::find_if(std::begin(kSteps), std::end(kSteps),
                                  [&](const Step& known) { return request.step() == known.name; });
  if (step == std::end(kSteps)) {
    return FailUsage(fmt::format("there is no step \"{}\"", Utf8(request.step().substr(0, 64))));
  }
  if (!(request.timeout_s() >= 0 && request.timeout_s() <= kLongestStepS)) {
    return FailUsage(fmt::format("a timeout of {} s is out of range", request.timeout_s()));
  }
  const double timeout_s = request.timeout_s() == 0 ? kDefaultStepS : request.timeout_s();
  const Deadline deadline = Deadline::In(config::Milliseconds(timeout_s));
  STASIS_ASSIGN(auto process, Annotate(ByHand::Open(call.paths, device, pid),
                                       "cannot " + request.step() + " GPU state"));
  STASIS_TRY(device.CheckHasStep(step->name, pid));
  Stopwatch watch;
  STASIS_ASSIGN(const GpuMap map, ParseMap(device, request.gpu_map()));
  STASIS_TRY(step->run(process, map, deadline));
  return watch.Seconds();
}

// Adds all processes that use a GPU and that the caller may inspect.
Status AddProcesses(const Call& call, DeviceControl& device, v1::ListGpusResponse& response) {
  STASIS_ASSIGN(auto names, ListDir("/proc"));
  for (const std::string& name : names) {
    const auto pid = ParsePid(name);
    if (!pid) continue;
    auto stat = process::ReadStat(*pid);
    if (!stat) continue;
    auto users = device.FindProcesses(process::ProcessTree{{*stat}});
    if (!users) {
      const Code code = users.error().code;
      if (code == Code::kPermissionDenied || code == Code::kNotFound) continue;
      if (code != Code::kFailedPrecondition) return Fail(std::move(users).error());
      // A process that is stopped by a signal cannot answer the driver. Only pid and name are
      // known.
      auto& process = *response.add_processes();
      process.set_pid(pid->value);
      process.set_state("stopped");
      process.set_command(Utf8(stat->comm));
      continue;
    }
    for (const device::DeviceProcess& user : *users) {
      auto& process = *response.add_processes();
      process.set_pid(user.id.pid.value);
      process.set_state(std::string(device::StateName(user.state)));
      process.set_context_kept(ContextKept(call.paths, user.id, user.state));
      for (const auto& uuid : user.gpus) process.add_gpus(uuid.value);
      process.set_device_bytes(user.device_bytes);
      process.set_command(Utf8(stat->comm));
    }
  }
  return {};
}

}  // namespace

Result<v1::ListGpusResponse> ListGpus(Call& call, const v1::ListGpusRequest&) {
  auto device = Control(call);
  STASIS_ASSIGN(auto driver, device->Driver());
  STASIS_ASSIGN(auto gpus, device->Gpus());
  v1::ListGpusResponse response;
  response.mutable_driver()->set_kind(driver.kind);
  response.mutable_driver()->set_version(driver.version);
  response.mutable_driver()->set_api_version(driver.api_version);
  response.mutable_driver()->set_can_checkpoint(driver.can_checkpoint);
  response.mutable_driver()->set_why_not(driver.why_not);
  for (const device::Gpu& gpu : gpus) {
    auto& message = *response.add_gpus();
    message.set_index(gpu.index);
    message.set_uuid(gpu.uuid.value);
    message.set_name(Utf8(gpu.name));
    message.set_total_bytes(gpu.total_bytes);
    message.set_free_bytes(gpu.free_bytes);
  }
  if (driver.can_checkpoint || abi::IsHip(driver.kind))
    STASIS_TRY(AddProcesses(call, *device, response));
  return response;
}

bool OnlyReads(const v1::GpuStepRequest& request) {
  return request.step() == "state" || request.step() == "restore-tid";
}

Result<v1::GpuStepResponse> GpuStep(Call& call, const v1::GpuStepRequest& request) {
  STASIS_ASSIGN(const HostPid pid, PidOf(request));
  auto device = Control(call);
  v1::GpuStepResponse response;
  response.set_pid(pid.value);
  const bool restore_tid = request.step() == "restore-tid";
  if (!OnlyReads(request)) {
    STASIS_ASSIGN(const double seconds, RunStep(call, *device, pid, request));
    response.set_seconds(seconds);
  }
  STASIS_ASSIGN(const ProcessState state, device->State(pid));
  if (restore_tid) {
    if (state == ProcessState::kNone) {
      return Fail(Code::kUnimplemented, fmt::format("process {} does not use a GPU", pid.value));
    }
    STASIS_ASSIGN(const pid_t tid, device->RestoreThread(pid));
    response.set_restore_tid(tid);
    return response;
  }
  response.set_state(std::string(device::StateName(state)));
  auto stat = process::ReadStat(pid);
  response.set_context_kept(stat && ContextKept(call.paths, stat->id, state));
  return response;
}

}  // namespace stasis::api
