#include "api/drop_in.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "api/methods.h"
#include "api/usage_error.h"
#include "base/deadline.h"
#include "device/device_control.h"
#include "gpu_state/services.h"
#include "operations/by_hand.h"

namespace stasis::api {
namespace {

using device::DeviceControl;
using device::ProcessState;
using operations::ByHand;
using process::HostPid;

constexpr std::chrono::seconds kLockTimeout{30};

// Checks only the format. The driver checks whether the GPUs exist; the old ones may be GPUs of
// another machine.
Result<device::GpuMap> ParseMap(std::string_view text) {
  device::GpuMap map;
  if (text.empty()) return map;
  for (;;) {
    const size_t comma = text.find(',');
    const std::string_view pair = text.substr(0, comma);
    const size_t sign = pair.find('=');
    uint8_t bytes[16];
    device::GpuUuid from{std::string(pair.substr(0, sign))};
    device::GpuUuid to{sign == pair.npos ? "" : std::string(pair.substr(sign + 1))};
    if (!device::GpuUuidBytes(from, bytes) || !device::GpuUuidBytes(to, bytes)) {
      return FailUsage(fmt::format("--device-map: \"{}\" is not GPU-UUID=GPU-UUID", pair));
    }
    map.emplace_back(std::move(from), std::move(to));
    if (comma == text.npos) return map;
    text.remove_prefix(comma + 1);
  }
}

struct Context {
  Call& call;
  const v1::GpuStepRequest& request;
  DeviceControl& device;
  HostPid pid;
  const HoldProgram& hold;
};

Status ResumeIt(const Context& context) {
  v1::ResumeRequest request;
  request.set_target(std::to_string(context.pid.value));
  request.set_gpu_map(context.request.gpu_map());
  STASIS_TRY(Resume(context.call, request));
  return {};
}

Status SuspendIt(const Context& context) {
  v1::SuspendRequest request;
  request.set_target(std::to_string(context.pid.value));
  STASIS_TRY(Suspend(context.call, request));
  return {};
}

// Locks the resumed process, because NVIDIA's restore leaves a process locked.
Status ResumeAndLock(const Context& context) {
  STASIS_TRY(ResumeIt(context));
  auto locked = context.device.Lock(context.pid, Deadline::In(kLockTimeout));
  if (locked) return {};
  Error error = std::move(locked).error();
  error.message += "; the process was restored and is running";
  error.not_undone = true;
  return Fail(std::move(error));
}

// Returns the method as which the daemon is told of this step. For a resume the daemon makes room,
// and a suspended program then stays so until it is resumed by hand.
Result<std::string> HeldAs(const Context& context, const ByHand& process) {
  const std::string& step = context.request.step();
  STASIS_ASSIGN(const bool suspended, process.IsSuspended());
  STASIS_ASSIGN(const ProcessState state, context.device.State(context.pid));
  const bool away = suspended || state == ProcessState::kCheckpointed;
  if (away && (step == "restore" || step == "toggle")) return std::string("Resume");
  const bool suspends = step == "toggle" && context.call.settings.toggle == "suspend";
  return std::string(suspends && state == ProcessState::kRunning ? "Suspend" : "GpuStep");
}

// Returns true if the process was away before the hold.
Result<bool> Hold(const Context& context) {
  std::string method = "GpuStep";
  auto process = ByHand::Open(context.call.paths, context.device, context.pid);
  if (process) {
    STASIS_ASSIGN(method, HeldAs(context, *process));
  } else if (process.error().code != Code::kAborted) {
    return Fail(std::move(process).error());
  }
  // If an operation works on the process, it may be the daemon's, and the hold waits for its end.
  STASIS_TRY(context.hold(std::to_string(context.pid.value), method));
  return method == "Resume";
}

Status Toggle(const Context& context, const ByHand& process, const device::GpuMap& map,
              bool was_away) {
  STASIS_ASSIGN(const bool suspended, process.IsSuspended());
  if (suspended) return ResumeIt(context);
  STASIS_ASSIGN(const ProcessState state, context.device.State(context.pid));
  // The daemon has resumed it before the hold began.
  if (was_away && state == ProcessState::kRunning) return {};
  if (state == ProcessState::kRunning) {
    if (!map.empty()) {
      return FailUsage("--device-map requires a restore, but the process is running");
    }
    if (context.call.settings.toggle == "suspend") return SuspendIt(context);
  }
  return process.Toggle(map, {});
}

Status Restore(const Context& context, const ByHand& process, const device::GpuMap& map) {
  STASIS_ASSIGN(const bool suspended, process.IsSuspended());
  return suspended ? ResumeAndLock(context) : process.Restore(map, {});
}

Result<ProcessState> StateOf(const Context& context, const ByHand& process) {
  STASIS_ASSIGN(const ProcessState state, context.device.State(context.pid));
  STASIS_ASSIGN(const bool away, process.IsMemoryAway());
  if (!away) return state;
  if (context.request.target() == std::to_string(context.pid.value)) {
    return ProcessState::kCheckpointed;
  }
  // CRIU's plugin asks with a thread id before a dump. It would skip a checkpointed process, and
  // the image would lack all GPU data. An error makes CRIU end the dump without changing the
  // program.
  return Fail(Code::kFailedPrecondition,
              fmt::format("process {} was suspended by Stasis, and its GPU data is not in the "
                          "process",
                          context.pid.value),
              fmt::format("use `stasis dump {0}`, or resume the process first with "
                          "`cuda-checkpoint --toggle --pid {0}`",
                          context.pid.value));
}

Status Act(const Context& context, v1::GpuStepResponse& response) {
  const std::string& step = context.request.step();
  if (step == "restore-tid") {
    // CRIU's plugin asks for the restore thread while the program is stopped, when the driver
    // cannot determine its state.
    auto tid = context.device.RestoreThread(context.pid);
    if (!tid) {
      STASIS_TRY(ByHand::Open(context.call.paths, context.device, context.pid));
      return Fail(std::move(tid).error());
    }
    response.set_restore_tid(*tid);
    return {};
  }
  STASIS_ASSIGN(const auto map, ParseMap(context.request.gpu_map()));
  bool was_away = false;
  if (step != "state") {
    STASIS_ASSIGN(was_away, Hold(context));
  }
  STASIS_ASSIGN(auto process, ByHand::Open(context.call.paths, context.device, context.pid));
  if (step == "state") {
    STASIS_ASSIGN(const ProcessState state, StateOf(context, process));
    response.set_state(std::string(device::StateName(state)));
    return {};
  }
  if (step == "lock") {
    const double seconds = context.request.timeout_s();
    return process.Lock(ByHand::Memory::kOwn,
                        seconds > 0 ? Deadline::In(config::Milliseconds(seconds)) : Deadline());
  }
  if (step == "checkpoint") return process.Checkpoint({});
  if (step == "restore") return Restore(context, process, map);
  if (step == "unlock") return process.Unlock({});
  if (step == "toggle") return Toggle(context, process, map, was_away);
  return FailUsage("there is no step " + step);
}

}  // namespace

Result<v1::GpuStepResponse> DropInStep(Call& call, const v1::GpuStepRequest& request,
                                       const HoldProgram& hold) {
  HostPid id;
  const std::string& target = request.target();
  (void)std::from_chars(target.data(), target.data() + target.size(), id.value);
  STASIS_ASSIGN(auto credentials, process::ReadCredentials(id));
  const HostPid pid = credentials.thread_group;
  auto device = device::MakeDeviceControl(gpu_state::ControlOptionsOf(call.paths, call.settings));
  v1::GpuStepResponse response;
  response.set_pid(pid.value);
  STASIS_TRY(Act({call, request, *device, pid, hold}, response));
  return response;
}

}  // namespace stasis::api
