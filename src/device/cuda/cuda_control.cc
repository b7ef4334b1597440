#include "device/cuda/cuda_control.h"

#include <fmt/format.h>

#include <algorithm>

#include "abi/cuda/driver_abi.h"
#include "abi/driver_kinds.h"
#include "base/install_layout.h"
#include "base/task_limits.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/gpu_uuid.h"
#include "device/hip/hip_driver.h"
#include "device/hip/queues.h"

namespace stasis::device::cuda {
namespace {

using process::HostPid;
using wire::Op;
using wire::Outcome;
using wire::Reply;
using wire::Request;
using Milliseconds = std::chrono::milliseconds;

ProcessState FromDriver(int32_t state) {
  static constexpr ProcessState kStates[] = {ProcessState::kRunning, ProcessState::kLocked,
                                             ProcessState::kCheckpointed, ProcessState::kFailed};
  return kStates[state];  // range checked by WhyInvalid()
}

// Checks that the process exists, has not ended, and is not a thread. The driver would accept a
// thread id as a process.
Status CheckPid(HostPid pid) {
  if (pid.value <= 0) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                process::ToString(pid) + " is not a process id");
  }
  STASIS_ASSIGN(process::Stat stat, process::ReadStat(pid));
  if (process::IsThreadOfAnother(pid.value)) {
    auto credentials = process::ReadCredentials(pid);
    std::string owner =
        credentials ? " of process " + process::ToString(credentials->thread_group) : "";
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("{} is a thread{}, not a process", pid.value, owner),
                "name the process");
  }
  if (stat.state == 'Z' || stat.state == 'X') {
    return Fail(Code::kNotFound, Domain::kProcess, 0,
                fmt::format("process {} has ended; its parent has not reaped it yet", pid.value));
  }
  return {};
}

Request For(Op op, HostPid pid) {
  Request request;
  request.op = op;
  request.pid = pid.value;
  return request;
}

Error NoDriver(const Reply& reply) {
  return Error{Code::kUnimplemented, Domain::kCuda, 0, reply.driver.why_not, {}, {}, false};
}

// Returns true if the reply says that the process never called cuInit of this driver.
bool MeansNoUser(const Reply& reply) {
  return reply.outcome == Outcome::kDriverError &&
         (reply.cu_result == stasis::cuda::CUDA_ERROR_NOT_INITIALIZED ||
          reply.cu_result == stasis::cuda::CUDA_ERROR_INVALID_VALUE);
}

Status AsStatus(const Reply& reply) {
  switch (reply.outcome) {
    case Outcome::kDone:
      return {};
    case Outcome::kNoDriver:
      return Fail(NoDriver(reply));
    case Outcome::kDriverError:
      return Fail(DriverError(reply.op, reply.cu_result, reply.cu_name, reply.cu_text));
    case Outcome::kBadRequest:
      return Fail(Code::kInternal,
                  std::string("the device helper refused the request as ") + reply.cu_text);
    case Outcome::kBusy:
      return Fail(Code::kResourceExhausted, std::string("the device helper: ") + reply.cu_text,
                  kRaiseTaskLimit);
  }
  return Fail(Code::kInternal, "the device helper returned an unknown outcome");
}

std::string InState(const Result<ProcessState>& state) {
  if (state && *state == ProcessState::kNone) return "does not use the driver (any more)";
  if (state) return "was left " + std::string(StateName(*state));
  if (state.error().code == Code::kNotFound) return "has ended";
  return "is in an unknown state: " + state.error().ToString();
}

}  // namespace

CudaControl::CudaControl(ControlOptions options) : options_(std::move(options)) {}

Result<HelperClient*> CudaControl::Client() {
  std::lock_guard lock(mutex_);
  if (client_ == nullptr) {
    HelperOptions helper;
    STASIS_ASSIGN(helper.program, LibexecProgram(kHelperProgram));
    helper.library = options_.library;
    helper.inherit_fd = options_.inherit_fd;
    helper.resident_dir = options_.resident_dir;
    helper.idle_timeout = options_.idle_timeout;
    helper.start_timeout = options_.query_timeout;
    helper.settle_timeout = options_.settle_timeout;
    client_ = std::make_unique<HelperClient>(std::move(helper));
  }
  return client_.get();
}

Result<pid_t> CudaControl::helper_pid() {
  STASIS_ASSIGN(HelperClient * client, Client());
  return client->helper_pid();
}

// Sends a request without side effects. Repeats it once if the helper died because of another
// request.
Result<Reply> CudaControl::Ask(Request request, const Deadline& deadline) {
  STASIS_ASSIGN(HelperClient * client, Client());
  auto reply = client->Call(request, deadline, OnDeadline::kRetire);
  if (!reply && reply.error().kind == CallFailure::Kind::kLost) {
    reply = client->Call(request, deadline, OnDeadline::kRetire);
  }
  if (!reply) {
    return Fail(std::move(reply.error().error).WithContext(std::string(OpName(request.op))));
  }
  return *reply;
}

Result<Reply> CudaControl::AskProcess(Op op, HostPid pid) {
  STASIS_TRY(CheckPid(pid));
  return Ask(For(op, pid), Deadline::In(options_.query_timeout));
}

Result<DriverInfo> CudaControl::Driver() {
  STASIS_ASSIGN(Reply reply, Ask(For(Op::kHello, {}), Deadline::In(options_.query_timeout)));
  if (reply.outcome != Outcome::kDone) STASIS_TRY(AsStatus(reply));
  DriverInfo info;
  info.kind = reply.driver.kind;
  // The driver of a software GPU does not report the memory of a process. It is read from the
  // process's files instead (device_files.h), which include imported memory.
  info.counts_imported = !abi::IsHardware(info.kind);
  info.version = reply.driver.version;
  info.api_version = reply.driver.api_version;
  info.can_checkpoint = reply.driver.can_checkpoint != 0;
  info.why_not = reply.driver.why_not;
  return info;
}

Result<std::vector<Gpu>> CudaControl::Gpus() {
  STASIS_ASSIGN(Reply reply, Ask(For(Op::kGpus, {}), Deadline::In(options_.query_timeout)));
  STASIS_TRY(AsStatus(reply));
  std::vector<Gpu> gpus;
  const auto minors = NvidiaMinors();
  for (uint32_t i = 0; i < reply.gpu_count; ++i) {
    const wire::GpuRecord& record = reply.gpus[i];
    gpus.push_back(
        {ToText(record.uuid), record.index, record.name, record.total_bytes, record.free_bytes});
    for (const auto& [minor, uuid] : minors) {
      if (uuid == gpus.back().uuid) gpus.back().minor = minor;
    }
    if (record.persistence != wire::Persistence::kUnknown) {
      gpus.back().persistence = record.persistence == wire::Persistence::kOn;
    }
  }
  return gpus;
}

Result<ProcessState> CudaControl::AskState(HostPid pid, const Deadline& deadline) {
  STASIS_TRY(CheckPid(pid));
  STASIS_ASSIGN(Reply reply, Ask(For(Op::kState, pid), deadline));
  if (MeansNoUser(reply)) return ProcessState::kNone;
  if (auto status = AsStatus(reply); !status) {
    STASIS_TRY(CheckPid(pid));  // prefer the error that the process has ended
    return Fail(std::move(status).error());
  }
  return FromDriver(reply.state);
}

Result<ProcessState> CudaControl::State(HostPid pid) {
  STASIS_TRY(CheckPid(pid));
  // A process that has not loaded the library cannot use the driver, so no helper is needed.
  STASIS_ASSIGN(Footprint footprint, ReadFootprint(pid));
  if (!footprint.candidate()) return ProcessState::kNone;
  return StateOf(pid, footprint);
}

// A process that uses another driver must not be mistaken for one without a driver. A process that
// is stopped by a signal does not answer the driver, which would wait for it forever.
Result<ProcessState> CudaControl::StateOf(HostPid pid, const Footprint& footprint) {
  if (footprint.hip) return ProcessState::kRunning;
  // HIP's runtime has device files open from its initialisation on.
  if (footprint.files.empty() && hip::IsRuntimeLibrary(footprint.library)) {
    return ProcessState::kNone;
  }
  const auto check_runs = [pid]() -> Status {
    auto stat = process::ReadStat(pid);
    if (!stat || stat->state != 'T') return {};
    return Fail(Code::kFailedPrecondition,
                fmt::format("process {} ({}) is stopped by a signal and cannot answer the driver",
                            pid.value, stat->comm),
                fmt::format("continue it with `kill -CONT {}`, then try again", pid.value));
  };
  STASIS_TRY(check_runs());
  auto state = AskState(pid, Deadline::In(options_.query_timeout));
  // Check again: the process may have stopped during the call.
  if (!state) STASIS_TRY(check_runs());
  if (!state && state.error().code == Code::kUnimplemented && !footprint.library.empty()) {
    state.error().hint = fmt::format(
        "process {} has loaded {}. If this is its driver, name it here too with "
        "STASIS_CUDA_LIBRARY or LD_LIBRARY_PATH",
        pid.value, footprint.library);
  }
  return state;
}

Status CudaControl::CheckHasStep(std::string_view step, HostPid pid) {
  auto footprint = ReadFootprint(pid);
  if (!footprint || !footprint->hip) return {};  // the driver's error is better
  return Fail(hip::NoSuchStep(step, pid.value));
}

Result<pid_t> CudaControl::RestoreThread(HostPid pid) {
  STASIS_TRY(CheckHasStep("restore thread", pid));
  STASIS_ASSIGN(Reply reply, AskProcess(Op::kRestoreThread, pid));
  STASIS_TRY(AsStatus(reply));
  return reply.tid;
}

Status CudaControl::Act(Request request, const Deadline& deadline) {
  const HostPid pid{request.pid};
  const std::string what = fmt::format("{} process {}", OpName(request.op), pid.value);
  STASIS_TRY(Annotate(CheckPid(pid), what));
  STASIS_TRY(CheckHasStep(OpName(request.op), pid));
  STASIS_ASSIGN(HelperClient * client, Client());
  auto reply = client->Call(request, deadline, OnDeadline::kKill);
  if (!reply) {
    Error error = std::move(reply.error().error);
    if (reply.error().kind != CallFailure::Kind::kNotStarted) {
      error.message += fmt::format("; process {} {}", pid.value, InState(Settle(request.op, pid)));
    }
    return Fail(std::move(error).WithContext(what));
  }
  auto status = AsStatus(*reply);
  if (status) return {};
  Error error = std::move(status).error();
  if (auto there = CheckPid(pid); !there) error = std::move(there).error();
  if (error.domain == Domain::kCuda) {
    if (MeansNoUser(*reply) && request.pair_count == 0) {
      // The driver returns the same error for a process without the driver; distinguish this case.
      if (auto state = State(pid); state && *state == ProcessState::kNone) {
        error.code = Code::kUnimplemented;
        error.message += fmt::format("; process {} does not use the CUDA driver", pid.value);
      }
    } else {
      auto state = AskState(pid, Deadline::In(options_.query_timeout));
      error.message += fmt::format("; process {} {}", pid.value, InState(state));
      // The process used the driver before this call, so it is exiting: the driver no longer lists
      // it, although it has not ended yet.
      if (state && *state == ProcessState::kNone) error.code = Code::kNotFound;
    }
  }
  return Fail(std::move(error).WithContext(what));
}

Status CudaControl::Lock(HostPid pid, const Deadline& deadline) {
  Request request = For(Op::kLock, pid);
  if (!deadline.never()) {
    // Set the driver's own timeout earlier than the deadline: the process then continues, and no
    // helper has to be killed.
    const int left = deadline.PollTimeout();
    request.timeout_ms = static_cast<uint32_t>(std::max(1, left - std::clamp(left / 4, 20, 1000)));
    request.timeout_ms = std::min(request.timeout_ms, wire::kMaxTimeoutMs);
  }
  return Act(request, deadline);
}

Status CudaControl::Checkpoint(HostPid pid, const Deadline& deadline) {
  return Act(For(Op::kCheckpoint, pid), deadline);
}

Status CudaControl::Restore(HostPid pid, const GpuMap& map, const Deadline& deadline) {
  Request request = For(Op::kRestore, pid);
  if (map.size() > wire::kMaxGpus) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the GPU map has {} pairs; at most {} are allowed", map.size(),
                            wire::kMaxGpus));
  }
  for (const auto& [old_gpu, new_gpu] : map) {
    wire::UuidPair& pair = request.pairs[request.pair_count++];
    STASIS_ASSIGN(pair.old_gpu, ToBytes(old_gpu));
    STASIS_ASSIGN(pair.new_gpu, ToBytes(new_gpu));
  }
  return Act(request, deadline);
}

Status CudaControl::Unlock(HostPid pid, const Deadline& deadline) {
  return Act(For(Op::kUnlock, pid), deadline);
}

Status CudaControl::ContinueQueues(HostPid pid, const Deadline& deadline) {
  auto footprint = ReadFootprint(pid);
  if (!footprint && footprint.error().code == Code::kNotFound) return {};
  if (!footprint) return Fail(std::move(footprint).error());
  if (!footprint->hip && !hip::IsRuntimeLibrary(footprint->library)) return {};
  return hip::ContinueQueues(pid, deadline);
}

Result<std::vector<std::string>> CudaControl::DeviceFilesHeld(HostPid pid) {
  STASIS_ASSIGN(Footprint footprint, ReadFootprint(pid));
  return footprint.files;
}

}  // namespace stasis::device::cuda

namespace stasis::device {

std::unique_ptr<DeviceControl> MakeDeviceControl(const ControlOptions& options) {
  return std::make_unique<cuda::CudaControl>(options);
}

Result<int> DismissHelpers(const std::string& resident_dir, const Deadline& deadline) {
  return cuda::DismissHelpers(resident_dir, deadline);
}

}  // namespace stasis::device
