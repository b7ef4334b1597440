// stasis gpu …: the GPUs, and the driver's single steps on one process, for use by other programs.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <map>
#include <memory>

#include "base/file.h"
#include "cli/verb.h"
#include "device/device_control.h"
#include "device/gpu_map.h"
#include "gpu_state/agents.h"
#include "gpu_state/services.h"
#include "operations/by_hand.h"
#include "operations/operations.h"

namespace stasis::cli {
namespace {

using device::DeviceControl;
using device::ProcessState;
using operations::ByHand;
using process::HostPid;

struct Options {
  std::string pid;
  std::string gpu_map;
  double timeout_s = 0;
};

// Uses the resident helper if there are directories for one.
std::unique_ptr<DeviceControl> MakeControl(const Globals& globals) {
  auto paths = OpenPaths(globals);
  return device::MakeDeviceControl(paths ? gpu_state::ControlOptionsOf(*paths, globals.settings())
                                         : gpu_state::ControlOptionsOf(globals.settings()));
}

Result<HostPid> ParsePid(const std::string& text) {
  HostPid pid;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid.value);
  if (error != std::errc{} || end != text.data() + text.size() || pid.value <= 0) {
    return FailUsage(fmt::format("\"{}\" is not a process id", text),
                     "the verbs of `stasis gpu` take one process, by its number");
  }
  return pid;
}

Deadline DeadlineOf(const Options& options) {
  if (options.timeout_s <= 0) return {};
  return Deadline::In(std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000)));
}

Result<device::GpuMap> MapOf(DeviceControl& device, const Options& options) {
  if (options.gpu_map.empty()) return device::GpuMap{};
  STASIS_ASSIGN(auto gpus, device.Gpus());
  return device::ParseGpuMap(options.gpu_map, gpus, gpus);
}

Status Lock(const ByHand& process, DeviceControl&, const Options& options) {
  return process.Lock(ByHand::Memory::kAsItIs, DeadlineOf(options));
}
Status Checkpoint(const ByHand& process, DeviceControl&, const Options& options) {
  return process.Checkpoint(DeadlineOf(options));
}
Status Restore(const ByHand& process, DeviceControl& device, const Options& options) {
  STASIS_ASSIGN(auto map, MapOf(device, options));
  return process.Restore(map, DeadlineOf(options));
}
Status Unlock(const ByHand& process, DeviceControl&, const Options& options) {
  return process.Unlock(DeadlineOf(options));
}
Status Toggle(const ByHand& process, DeviceControl& device, const Options& options) {
  STASIS_ASSIGN(auto map, MapOf(device, options));
  return process.Toggle(map, DeadlineOf(options));
}

Outcome Act(const Globals& globals, const Options& options, const char* name,
            Status (*step)(const ByHand&, DeviceControl&, const Options&)) {
  STASIS_ASSIGN(HostPid pid, ParsePid(options.pid));
  auto device = MakeControl(globals);
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  STASIS_ASSIGN(auto process, Annotate(ByHand::Open(paths, *device, pid),
                                       fmt::format("cannot {} its GPU state", name)));
  Stopwatch watch;
  STASIS_TRY(step(process, *device, options));
  double seconds = watch.Seconds();
  STASIS_ASSIGN(ProcessState state, device->State(pid));
  PrintResult(globals,
              fmt::format("process {} is {} ({})", pid.value, device::StateName(state),
                          FormatSeconds(seconds)),
              {{"pid", pid.value}, {"state", device::StateName(state)}, {"seconds", seconds}});
  return 0;
}

// Returns true for a process that Stasis has suspended while keeping its context, although the
// driver reports it as running or locked.
bool ContextKept(const Paths& paths, const process::ProcessId& id, ProcessState state) {
  if (state != ProcessState::kRunning && state != ProcessState::kLocked) return false;
  return gpu_state::LoadKeptContext(paths, id).has_value();
}

Outcome PrintState(const Globals& globals, const Options& options) {
  STASIS_ASSIGN(HostPid pid, ParsePid(options.pid));
  auto device = MakeControl(globals);
  STASIS_ASSIGN(ProcessState state, device->State(pid));
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  auto stat = process::ReadStat(pid);
  const bool kept = stat && ContextKept(paths, stat->id, state);
  PrintResult(
      globals,
      fmt::format("{}{}", device::StateName(state), kept ? " (suspended, context kept)" : ""),
      {{"pid", pid.value}, {"state", device::StateName(state)}, {"context_kept", kept}});
  return 0;
}

Outcome PrintRestoreThread(const Globals& globals, const Options& options) {
  STASIS_ASSIGN(HostPid pid, ParsePid(options.pid));
  auto device = MakeControl(globals);
  STASIS_ASSIGN(ProcessState state, device->State(pid));
  if (state == ProcessState::kNone) {
    return Fail(Code::kUnimplemented, fmt::format("process {} does not use a GPU", pid.value));
  }
  STASIS_ASSIGN(pid_t tid, device->RestoreThread(pid));
  PrintResult(globals, std::to_string(tid), {{"pid", pid.value}, {"restore_tid", tid}});
  return 0;
}

struct Row {
  device::DeviceProcess process;
  std::string name;
};

// Returns all processes of this machine that use a GPU and may be inspected.
Result<std::vector<Row>> AllUsers(DeviceControl& device) {
  STASIS_ASSIGN(auto names, ListDir("/proc"));
  std::vector<Row> rows;
  for (const std::string& name : names) {
    auto pid = ParsePid(name);
    if (!pid) continue;
    auto stat = process::ReadStat(*pid);
    if (!stat) continue;
    auto users = device.FindProcesses(process::ProcessTree{{*stat}});
    if (!users) {
      Code code = users.error().code;
      if (code == Code::kPermissionDenied || code == Code::kNotFound) continue;
      return Fail(std::move(users).error());
    }
    for (auto& user : *users) rows.push_back({std::move(user), stat->comm});
  }
  return rows;
}

Outcome List(const Globals& globals) {
  auto device = MakeControl(globals);
  STASIS_ASSIGN(auto driver, device->Driver());
  STASIS_ASSIGN(auto gpus, device->Gpus());
  std::vector<Row> rows;
  if (driver.can_checkpoint) {
    STASIS_ASSIGN(rows, AllUsers(*device));
  }

  std::string text = fmt::format("{} driver {}, CUDA {}.{}{}\n", driver.kind,
                                 driver.version.empty() ? "(unknown version)" : driver.version,
                                 driver.api_version / 1000, driver.api_version % 1000 / 10,
                                 driver.can_checkpoint ? "" : ": " + driver.why_not);
  auto gpus_json = nlohmann::json::array();
  std::map<std::string, int> index_of;
  for (const auto& gpu : gpus) {
    index_of[gpu.uuid.value] = gpu.index;
    text += fmt::format("{:>3}  {}  {:<24} {:>10} free of {}\n", gpu.index, gpu.uuid.value,
                        gpu.name, FormatBytes(gpu.free_bytes), FormatBytes(gpu.total_bytes));
    gpus_json.push_back({{"index", gpu.index},
                         {"uuid", gpu.uuid.value},
                         {"name", gpu.name},
                         {"total_bytes", gpu.total_bytes},
                         {"free_bytes", gpu.free_bytes}});
  }
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  auto processes_json = nlohmann::json::array();
  if (!rows.empty()) {
    text += fmt::format("\n{:>9}  {:<13} {:<6} {:>10}  {}\n", "PID", "STATE", "GPU", "MEMORY",
                        "COMMAND");
  }
  for (const Row& row : rows) {
    std::string on;
    auto uuids = nlohmann::json::array();
    for (const auto& uuid : row.process.gpus) {
      uuids.push_back(uuid.value);
      on += fmt::format("{}{}", on.empty() ? "" : ",", index_of[uuid.value]);
    }
    const bool kept = ContextKept(paths, row.process.id, row.process.state);
    text += fmt::format("{:>9}  {:<13} {:<6} {:>10}  {}\n", row.process.id.pid.value,
                        kept ? "context kept" : device::StateName(row.process.state),
                        on.empty() ? "-" : on, FormatBytes(row.process.device_bytes), row.name);
    processes_json.push_back({{"pid", row.process.id.pid.value},
                              {"state", device::StateName(row.process.state)},
                              {"context_kept", kept},
                              {"gpus", uuids},
                              {"device_bytes", row.process.device_bytes},
                              {"command", row.name}});
  }
  PrintResult(globals, text,
              {{"driver",
                {{"kind", driver.kind},
                 {"version", driver.version},
                 {"api_version", driver.api_version},
                 {"can_checkpoint", driver.can_checkpoint},
                 {"why_not", driver.why_not}}},
               {"gpus", gpus_json},
               {"processes", processes_json}});
  return 0;
}

struct StepRow {
  const char* name;
  const char* help;
  Status (*step)(const ByHand&, DeviceControl&, const Options&);
  bool takes_map;
};
constexpr StepRow kSteps[] = {
    {"lock", "Let no call of the process reach the GPU any more (running to locked)", Lock, false},
    {"checkpoint", "Take its GPU state into its own memory (locked to checkpointed)", Checkpoint,
     false},
    {"restore", "Put its GPU state back (checkpointed to locked)", Restore, true},
    {"unlock", "Let it run (locked to running)", Unlock, false},
    {"toggle", "Running to checkpointed, or checkpointed to running", Toggle, true},
};

}  // namespace

void RegisterGpu(App app, const std::function<void(Action)>& select) {
  auto gpu = app.add_subcommand("gpu", "GPUs, and the driver's own steps on one process");
  gpu->require_subcommand(1);
  auto options = std::make_shared<Options>();
  auto add = [&](const char* name, const char* help) {
    auto verb = gpu->add_subcommand(name, help);
    verb->add_option("PID", options->pid, "A process id")->required();
    return verb;
  };

  gpu->add_subcommand("ls", "GPUs, the processes on them, their memory and states")->callback([=] {
    select([](const Globals& globals) { return List(globals); });
  });
  add("state", "The driver's state of a process: none, running, locked, checkpointed, failed")
      ->callback(
          [=] { select([=](const Globals& globals) { return PrintState(globals, *options); }); });
  for (const StepRow& row : kSteps) {
    auto verb = add(row.name, row.help);
    verb->add_option("--timeout", options->timeout_s, "Seconds that it may take (no limit)")
        ->range(0.0, 86400.0);
    if (row.takes_map) {
      verb->add_option("--gpu-map", options->gpu_map,
                       "Move to other GPUs: OLD=NEW,... by UUID, index or name");
    }
    verb->callback([=] {
      select([=](const Globals& globals) { return Act(globals, *options, row.name, row.step); });
    });
  }
  add("restore-tid", "The thread of a process that the driver restores it with")->callback([=] {
    select([=](const Globals& globals) { return PrintRestoreThread(globals, *options); });
  });
}

}  // namespace stasis::cli
