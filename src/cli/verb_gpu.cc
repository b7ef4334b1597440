// stasis gpu …: lists GPUs, and runs single steps of the driver on one process for other programs.
#include <fmt/format.h>

#include <map>
#include <memory>

#include "abi/driver_kinds.h"
#include "api/methods.h"
#include "api/share_hold.h"
#include "cli/message_json.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

Outcome RunStep(const Globals& globals, const v1::GpuStepRequest& request, bool changes) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  std::unique_ptr<api::ShareHold> hold;
  if (changes) {
    STASIS_ASSIGN(hold, api::HoldShare(call, request.target(), "GpuStep", /*cancel_fd=*/-1));
  }
  const auto step = api::GpuStep(call, request);
  if (hold) hold->Finish(step.has_value());
  if (!step) return Fail(step.error());
  const v1::GpuStepResponse& done = *step;
  nlohmann::json document = {{"pid", done.pid()}};
  std::string text;
  if (request.step() == "restore-tid") {
    document["restore_tid"] = done.restore_tid();
    text = std::to_string(done.restore_tid());
  } else if (request.step() == "state") {
    document.update({{"state", done.state()}, {"context_kept", done.context_kept()}});
    text = done.state() + (done.context_kept() ? " (suspended, context kept)" : "");
  } else {
    document.update({{"state", done.state()}, {"seconds", done.seconds()}});
    text = fmt::format("process {} is {} ({})", done.pid(), done.state(),
                       FormatSeconds(done.seconds()));
  }
  PrintResult(globals, text, document);
  return 0;
}

std::string ListText(const v1::ListGpusResponse& response) {
  const auto& driver = response.driver();
  std::string text = fmt::format("{} driver {}, {} {}.{}{}\n", driver.kind(),
                                 driver.version().empty() ? "(unknown version)" : driver.version(),
                                 abi::IsHip(driver.kind()) ? "HIP" : "CUDA",
                                 driver.api_version() / 1000, driver.api_version() % 1000 / 10,
                                 driver.can_checkpoint() ? "" : ": " + driver.why_not());
  std::map<std::string, int> index_of;
  for (const auto& gpu : response.gpus()) {
    index_of[gpu.uuid()] = gpu.index();
    text += fmt::format("{:>3}  {}  {:<24} {:>10} free of {}\n", gpu.index(), gpu.uuid(),
                        gpu.name(), FormatBytes(gpu.free_bytes()), FormatBytes(gpu.total_bytes()));
  }
  static constexpr char kRow[] = "{:>9}  {:<13} {:<6} {:>10}  {}\n";
  if (!response.processes().empty()) {
    text += "\n" + fmt::format(kRow, "PID", "STATE", "GPU", "MEMORY", "COMMAND");
  }
  for (const auto& process : response.processes()) {
    std::string on;
    for (const auto& uuid : process.gpus()) {
      on += fmt::format("{}{}", on.empty() ? "" : ",", index_of[uuid]);
    }
    text +=
        fmt::format(kRow, process.pid(), process.context_kept() ? "context kept" : process.state(),
                    on.empty() ? "-" : on, FormatBytes(process.device_bytes()), process.command());
  }
  return text;
}

Outcome ListGpus(const Globals& globals) {
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  STASIS_ASSIGN(const auto response, api::ListGpus(call, {}));
  PrintResult(globals, ListText(response), MessageJson(response));
  return 0;
}

struct StepRow {
  const char* name;
  const char* help;
  bool changes;  // has a timeout
  bool has_map;
};
constexpr StepRow kSteps[] = {
    {"state", "Print the driver's state of a process: none, running, locked, checkpointed, failed",
     false, false},
    {"lock", "Block all GPU calls of a process (running to locked)", true, false},
    {"checkpoint", "Move the GPU state of a process into its memory (locked to checkpointed)", true,
     false},
    {"restore", "Move the GPU state of a process back (checkpointed to locked)", true, true},
    {"unlock", "Let a process use the GPU again (locked to running)", true, false},
    {"toggle", "Running to checkpointed, or checkpointed to running", true, true},
    {"restore-tid", "Print the id of the thread that the driver uses to restore a process", false,
     false},
};

}  // namespace

void RegisterGpu(App app, const std::function<void(Action)>& select) {
  auto gpu = app.add_subcommand("gpu", "List GPUs, and run the driver's own steps on one process");
  gpu->require_subcommand(1);
  gpu->add_subcommand("ls", "List GPUs, and the processes on them with their memory and state")
      ->callback([=] { select(ListGpus); });
  struct Options {
    std::string pid, map;
    double timeout_s = 0;
  };
  auto options = std::make_shared<Options>();
  for (const StepRow& row : kSteps) {
    auto verb = gpu->add_subcommand(row.name, row.help);
    verb->add_option("PID", options->pid, "A process id")->required();
    if (row.changes) {
      verb->add_option("--timeout", options->timeout_s, "Limit in seconds (default: 3600)")
          ->range(0.0, 86400.0);
    }
    if (row.has_map) {
      verb->add_option("--gpu-map", options->map,
                       "Move to other GPUs: OLD=NEW,... by UUID, index or name");
    }
    verb->callback([=, name = row.name, changes = row.changes] {
      select([=](const Globals& globals) {
        v1::GpuStepRequest request;
        request.set_target(options->pid);
        request.set_step(name);
        request.set_timeout_s(options->timeout_s);
        request.set_gpu_map(options->map);
        return RunStep(globals, request, changes);
      });
    });
  }
}

}  // namespace stasis::cli
