#include "gpu_state/gpu_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <thread>

#include "base/parallel.h"
#include "gpu_state/agents.h"
#include "gpu_state/gpu_room.h"
#include "gpu_state/suspended.h"

namespace stasis::gpu_state {
namespace {

using device::ProcessState;
using plan::Phase;
using plan::PhaseScope;
using plan::RecordedProcess;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Time limits of one phase for all processes. The driver saves 2 GB/s and restores 6 GB/s (measured
// on an H200), so 140 GiB take more than a minute. The lock waits for submitted work, which may be
// a long kernel.
constexpr seconds kLockTimeout{30};
constexpr seconds kDataTimeout{600};
constexpr seconds kUnlockTimeout{30};

constexpr const char* kUndoGroup = "gpu-state";

// Runs `step` for every process in parallel. The error is the first in the list's order and names
// its process.
Status ForEach(const Processes& processes,
               const std::function<Status(const RecordedProcess&)>& step) {
  return InParallel(processes.size(), [&](size_t i) {
    return Annotate(step(processes[i]), fmt::format("process {}", processes[i].id.pid.value));
  });
}

// The pid of an ended process may be reused.
Status RequireAlive(const RecordedProcess& p) {
  if (process::IsAlive(p.id)) return {};
  return Fail(Code::kNotFound, fmt::format("process {} has ended", p.id.pid.value));
}

Result<Processes> InState(const Services& services, const Processes& processes,
                          ProcessState wanted) {
  Processes found;
  for (const auto& p : processes) {
    STASIS_TRY(RequireAlive(p));
    STASIS_ASSIGN(ProcessState state, services.device->State(p.id.pid));
    if (state == wanted) found.push_back(p);
  }
  return found;
}

// Calls the driver's restore while holding the locks of the GPUs.
Status RestoreWithRoom(const Services& services, const Processes& processes,
                       const device::GpuMap& map, const Deadline& deadline) {
  STASIS_ASSIGN(GpuRoom room, GpuRoom::Hold(services, processes, map, deadline));
  return ForEach(processes, [&](const RecordedProcess& p) -> Status {
    STASIS_TRY(RequireAlive(p));
    return services.device->Restore(p.id.pid, MapForDriver(services.paths, p.id, map), deadline);
  });
}

using DriverStep = Status (device::DeviceControl::*)(process::HostPid, const Deadline&);

std::function<Status()> UndoOf(Services& services, const Processes& processes) {
  return [&] { return ReturnAllToRecordedState(services, processes); };
}

// A phase that takes every process in state `from` to the next state and skips the others.
Phase Transition(Services& services, const Processes& processes, std::string name, seconds timeout,
                 ProcessState from, DriverStep step, uint64_t bytes) {
  auto move = [&services, from, step](const RecordedProcess& p,
                                      const Deadline& deadline) -> Status {
    STASIS_TRY(RequireAlive(p));
    STASIS_ASSIGN(ProcessState state, services.device->State(p.id.pid));
    return state == from ? (services.device.get()->*step)(p.id.pid, deadline) : Status{};
  };
  return {.name = std::move(name),
          .timeout = timeout,
          .run = [&processes, move, bytes](PhaseScope& scope) -> Status {
            STASIS_TRY(ForEach(
                processes, [&](const RecordedProcess& p) { return move(p, scope.deadline()); }));
            scope.SetBytes(bytes);
            return {};
          },
          .undo = UndoOf(services, processes),
          .undo_group = kUndoGroup};
}

Status CheckReleased(device::DeviceControl& device, const RecordedProcess& p) {
  STASIS_TRY(RequireAlive(p));
  STASIS_ASSIGN(ProcessState state, device.State(p.id.pid));
  if (state != ProcessState::kCheckpointed) {
    return Fail(Code::kInternal, fmt::format("the driver reports it as {} after its checkpoint",
                                             device::StateName(state)));
  }
  STASIS_ASSIGN(auto held, device.DeviceFilesHeld(p.id.pid));
  if (held.empty()) return {};
  return Fail(Code::kUnimplemented,
              fmt::format("it still holds {} GPU file(s) after the driver's checkpoint, the first "
                          "is {}",
                          held.size(), held[0]),
              "something other than CUDA uses the GPU in this process (graphics, a profiler, a "
              "child after fork)");
}

}  // namespace

Processes AsRunning(Processes processes) {
  for (auto& p : processes) {
    p.initial = ProcessState::kRunning;
    p.context_kept = false;
  }
  return processes;
}

Status RestoreSuspendRecord(const Paths& paths, const RecordedProcess& process) {
  if (process.initial == ProcessState::kCheckpointed) return {};
  if (!process.context_kept) return ForgetSuspended(paths, process.id);
  SuspendedProcess record{process.id, process.gpus, process.away_bytes, std::time(nullptr)};
  record.context_kept = true;
  record.visible = process.visible;
  return SaveSuspended(paths, record);
}

Phase GpuLock(Services& services, const Processes& processes) {
  return Transition(services, processes, "gpu-lock", kLockTimeout, ProcessState::kRunning,
                    &device::DeviceControl::Lock, 0);
}

Phase GpuCheckpoint(Services& services, const Processes& processes, uint64_t bytes) {
  return Transition(services, processes, "gpu-checkpoint", kDataTimeout, ProcessState::kLocked,
                    &device::DeviceControl::Checkpoint, bytes);
}

Phase GpuReleaseCheck(Services& services, const Processes& processes) {
  return {.name = "gpu-release-check",
          .timeout = seconds(10),
          .run = [&services, &processes](PhaseScope&) {
            return ForEach(processes, [&](const RecordedProcess& p) {
              return CheckReleased(*services.device, p);
            });
          }};
}

Phase GpuRestore(Services& services, const Processes& processes, const device::GpuMap& map,
                 uint64_t bytes) {
  return {.name = kGpuRestore,
          .timeout = kDataTimeout,
          .run = [&services, &processes, map, bytes](PhaseScope& scope) -> Status {
            STASIS_ASSIGN(Processes away,
                          InState(services, processes, ProcessState::kCheckpointed));
            STASIS_TRY(RestoreWithRoom(services, away, map, scope.deadline()));
            scope.SetBytes(bytes);
            return {};
          },
          .undo = UndoOf(services, processes),
          .undo_group = kUndoGroup};
}

Phase GpuUnlock(Services& services, const Processes& processes) {
  return Transition(services, processes, "gpu-unlock", kUnlockTimeout, ProcessState::kLocked,
                    &device::DeviceControl::Unlock, 0);
}

namespace {

// Returns the live processes whose GPU state is away and was not before.
Processes ToBeRestored(const Services& services, const Processes& processes) {
  Processes found;
  for (const auto& p : processes) {
    if (p.initial != ProcessState::kRunning && p.initial != ProcessState::kLocked) continue;
    if (!process::IsAlive(p.id)) continue;
    auto state = services.device->State(p.id.pid);
    if (state && *state == ProcessState::kCheckpointed) found.push_back(p);
  }
  return found;
}

Status RestoreOrKeepSuspended(const Services& services, const Processes& processes,
                              const Deadline& deadline) {
  Status done = RestoreWithRoom(services, processes, {}, deadline);
  if (done || done.error().code != Code::kResourceExhausted) return done;
  Error error = std::move(done).error();
  error.message += "; it stays suspended";
  error.hint = "free memory on the GPU, then run `stasis recover`";
  return Fail(std::move(error));
}

// One step of the driver towards the recorded state; at most three lead from any state to any
// other.
struct Step {
  ProcessState now, goal;
  Status (*move)(const Services&, const RecordedProcess&, const Deadline&);
};

Status Restore(const Services& services, const RecordedProcess& p, const Deadline& deadline) {
  return RestoreOrKeepSuspended(services, {p}, deadline);
}
Status Unlock(const Services& services, const RecordedProcess& p, const Deadline& deadline) {
  return services.device->Unlock(p.id.pid, deadline);
}
// Refuses a process that has imported memory from a resume, because the driver could never restore
// it. Called before the lock too, because an agent inside the driver cannot answer once its process
// is locked.
Status RefuseImported(const Services& services, const RecordedProcess& p) {
  STASIS_ASSIGN(const uint32_t memory, MemoryOf(*services.agents, p.id));
  if ((memory & (agent_protocol::kMemoryImported | agent_protocol::kMemoryShared)) == 0) return {};
  STASIS_ASSIGN(auto agent, FindAgent(*services.agents, p.id));
  if (agent && agent->hello().imported_ranges > 0) return Fail(PartlyResumed());
  return {};
}
Status Checkpoint(const Services& services, const RecordedProcess& p, const Deadline& deadline) {
  STASIS_TRY(RefuseImported(services, p));
  return services.device->Checkpoint(p.id.pid, deadline);
}
Status Lock(const Services& services, const RecordedProcess& p, const Deadline& deadline) {
  return services.device->Lock(p.id.pid, deadline);
}

Status LockToCheckpoint(const Services& services, const RecordedProcess& p,
                        const Deadline& deadline) {
  STASIS_TRY(RefuseImported(services, p));
  return Lock(services, p, deadline);
}

constexpr Step kSteps[] = {
    {ProcessState::kCheckpointed, ProcessState::kRunning, Restore},
    {ProcessState::kCheckpointed, ProcessState::kLocked, Restore},
    {ProcessState::kLocked, ProcessState::kRunning, Unlock},
    {ProcessState::kLocked, ProcessState::kCheckpointed, Checkpoint},
    {ProcessState::kRunning, ProcessState::kLocked, Lock},
    {ProcessState::kRunning, ProcessState::kCheckpointed, LockToCheckpoint},
};

const Step* FindStep(ProcessState now, ProcessState goal) {
  auto step = std::find_if(std::begin(kSteps), std::end(kSteps),
                           [&](const Step& s) { return s.now == now && s.goal == goal; });
  return step == std::end(kSteps) ? nullptr : step;
}

}  // namespace

Error PartlyResumed() {
  Error error{Code::kInternal};
  error.message = "a part of its GPU memory was restored: the driver alone cannot suspend it again";
  error.hint = "`stasis recover` finishes the resume";
  return error;
}

Status ReturnToRecordedState(const Services& services, const RecordedProcess& process) {
  const Deadline deadline = Deadline::In(services.undo_timeout());
  // The driver may still execute a call that was abandoned at its deadline, and finish it between
  // State() and the step. So a step that finds the process in another state is not a failure, and
  // the loop reads the state again. The driver sends no notification, so the state is polled.
  constexpr milliseconds kFirstPause{10}, kLastPause{250};
  milliseconds pause = kFirstPause;
  while (!deadline.passed()) {
    if (!process::IsAlive(process.id)) return {};
    auto now = services.device->State(process.id.pid);
    if (!now) {
      if (now.error().code == Code::kNotFound && !process::IsAlive(process.id)) return {};
      return Fail(std::move(now).error());
    }
    if (*now == process.initial) return {};
    if (process.initial == ProcessState::kCheckpointed) {
      STASIS_TRY(RecordMove(services.paths, process.id, process.map));
    }
    const Step* step = FindStep(*now, process.initial);
    if (step == nullptr) {
      // The driver reports no state for a process that is ending.
      if (!process::IsAlive(process.id)) return {};
      return Fail(Code::kDataLoss,
                  fmt::format("the GPU state of process {} is {}, but was {}", process.id.pid.value,
                              device::StateName(*now), device::StateName(process.initial)));
    }
    Status done = step->move(services, process, deadline);
    if (done) {
      pause = kFirstPause;
      continue;
    }
    if (done.error().code == Code::kNotFound && !process::IsAlive(process.id)) return {};
    if (done.error().code != Code::kFailedPrecondition) return done;
    std::this_thread::sleep_for(std::min(pause, milliseconds(std::max(deadline.PollTimeout(), 0))));
    pause = std::min(2 * pause, kLastPause);
  }
  return Fail(Code::kDeadlineExceeded, "its GPU state keeps changing");
}

Status ReturnAllToRecordedState(const Services& services, const Processes& processes) {
  // Restore all suspended processes with one call, so that processes on one GPU do not wait for
  // each other's lock, and either all of them have room or none. A process whose driver call is
  // still running is restored alone later.
  Status together = RestoreOrKeepSuspended(services, ToBeRestored(services, processes),
                                           Deadline::In(services.undo_timeout()));
  bool no_room = !together && together.error().code == Code::kResourceExhausted;
  Processes waiting = no_room ? ToBeRestored(services, processes) : Processes{};
  Processes rest;
  for (const auto& p : processes) {
    bool waits = std::any_of(waiting.begin(), waiting.end(),
                             [&](const auto& other) { return other.id == p.id; });
    if (!waits) rest.push_back(p);
  }
  Status back =
      ForEach(rest, [&](const RecordedProcess& p) { return ReturnToRecordedState(services, p); });
  return waiting.empty() ? back : together;
}

Status ContinueAllQueues(const Services& services, const Processes& processes) {
  return ForEach(processes, [&](const RecordedProcess& p) -> Status {
    if (!process::IsAlive(p.id)) return {};
    return services.device->ContinueQueues(p.id.pid, Deadline::In(services.undo_timeout()));
  });
}

}  // namespace stasis::gpu_state
