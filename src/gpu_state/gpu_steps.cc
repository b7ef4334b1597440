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

// Defaults for one phase over all processes. The driver moves 2 GB/s out and 6 GB/s back (evidence
// of an H200), so 140 GiB take more than a minute; the lock waits for submitted work, which may be
// a long kernel.
constexpr seconds kLockTimeout{30};
constexpr seconds kDataTimeout{600};
constexpr seconds kUnlockTimeout{30};

constexpr const char* kUndoGroup = "gpu-state";

// Runs `step` for every process, in parallel; the first error of the list's order, annotated with
// its process.
Status ForEach(const Processes& processes,
               const std::function<Status(const RecordedProcess&)>& step) {
  return InParallel(processes.size(), [&](size_t i) {
    return Annotate(step(processes[i]), fmt::format("process {}", processes[i].id.pid.value));
  });
}

// A pid whose process has ended may be somebody else's by now.
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

// The driver's restore of those, under the locks of their GPUs.
Status RestoreWithRoom(const Services& services, const Processes& processes,
                       const device::GpuMap& map, const Deadline& deadline) {
  STASIS_ASSIGN(GpuRoom room, GpuRoom::Hold(services, processes, map, deadline));
  return ForEach(processes, [&](const RecordedProcess& p) -> Status {
    STASIS_TRY(RequireAlive(p));
    return services.device->Restore(p.id.pid, MapForDriver(services.paths, p.id, map), deadline);
  });
}

// A phase that moves every process from one state to the next and skips those that are elsewhere.
Phase Transition(
    Services& services, const Processes& processes, std::string name, seconds timeout,
    ProcessState from,
    std::function<Status(device::DeviceControl&, process::HostPid, const Deadline&)> move,
    uint64_t bytes) {
  Phase phase;
  phase.name = std::move(name);
  phase.timeout = timeout;
  auto device = services.device;
  phase.run = [=, processes = &processes](PhaseScope& scope) -> Status {
    STASIS_TRY(ForEach(*processes, [&](const RecordedProcess& p) -> Status {
      STASIS_TRY(RequireAlive(p));
      STASIS_ASSIGN(ProcessState state, device->State(p.id.pid));
      if (state != from) return {};
      return move(*device, p.id.pid, scope.deadline());
    }));
    scope.SetBytes(bytes);
    return {};
  };
  phase.undo = [services = &services, processes = &processes] {
    return ReturnAllToRecordedState(*services, *processes);
  };
  phase.undo_group = kUndoGroup;
  return phase;
}

}  // namespace

Processes AsRunning(Processes processes) {
  for (auto& p : processes) {
    p.initial = ProcessState::kRunning;
    p.context_kept = false;
  }
  return processes;
}

Status RememberAsBefore(const Paths& paths, const RecordedProcess& process) {
  if (process.initial == ProcessState::kCheckpointed) return {};
  if (!process.context_kept) return ForgetSuspended(paths, process.id);
  SuspendedProcess record{process.id, process.gpus, process.away_bytes, std::time(nullptr)};
  record.context_kept = true;
  return SaveSuspended(paths, record);
}

Phase GpuLock(Services& services, const Processes& processes) {
  return Transition(
      services, processes, "gpu-lock", kLockTimeout, ProcessState::kRunning,
      [](auto& device, auto pid, auto& deadline) { return device.Lock(pid, deadline); }, 0);
}

Phase GpuCheckpoint(Services& services, const Processes& processes, uint64_t bytes) {
  return Transition(
      services, processes, "gpu-checkpoint", kDataTimeout, ProcessState::kLocked,
      [](auto& device, auto pid, auto& deadline) { return device.Checkpoint(pid, deadline); },
      bytes);
}

Phase GpuReleaseCheck(Services& services, const Processes& processes) {
  Phase phase;
  phase.name = "gpu-release-check";
  phase.timeout = seconds(10);
  auto device = services.device;
  phase.run = [=, processes = &processes](PhaseScope&) {
    return ForEach(*processes, [&](const RecordedProcess& p) -> Status {
      STASIS_TRY(RequireAlive(p));
      STASIS_ASSIGN(ProcessState state, device->State(p.id.pid));
      if (state != ProcessState::kCheckpointed) {
        return Fail(Code::kInternal, fmt::format("the driver calls it {} after its checkpoint",
                                                 device::StateName(state)));
      }
      STASIS_ASSIGN(auto held, device->DeviceFilesHeld(p.id.pid));
      if (held.empty()) return {};
      return Fail(
          Code::kUnimplemented,
          fmt::format(
              "it still holds {} GPU file(s) after the driver's checkpoint, the first is {}",
              held.size(), held[0]),
          "something beside CUDA uses the GPU there (graphics, a profiler, a child after fork)");
    });
  };
  return phase;
}

Phase GpuRestore(Services& services, const Processes& processes, const device::GpuMap& map,
                 uint64_t bytes) {
  Phase phase;
  phase.name = "gpu-restore";
  phase.timeout = kDataTimeout;
  phase.run = [=, services = &services, processes = &processes](PhaseScope& scope) -> Status {
    STASIS_ASSIGN(Processes away, InState(*services, *processes, ProcessState::kCheckpointed));
    STASIS_TRY(RestoreWithRoom(*services, away, map, scope.deadline()));
    scope.SetBytes(bytes);
    return {};
  };
  phase.undo = [services = &services, processes = &processes] {
    return ReturnAllToRecordedState(*services, *processes);
  };
  phase.undo_group = kUndoGroup;
  return phase;
}

Phase GpuUnlock(Services& services, const Processes& processes) {
  return Transition(
      services, processes, "gpu-unlock", kUnlockTimeout, ProcessState::kLocked,
      [](auto& device, auto pid, auto& deadline) { return device.Unlock(pid, deadline); }, 0);
}

namespace {

// Those whose GPU state is away and was not.
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

Status RestoreBack(const Services& services, const Processes& processes, const Deadline& deadline) {
  Status done = RestoreWithRoom(services, processes, {}, deadline);
  if (done || done.error().code != Code::kResourceExhausted) return done;
  Error error = std::move(done).error();
  error.message += "; it stays suspended";
  error.hint = "free the GPU, then `stasis recover`";
  return Fail(std::move(error));
}

// One step of the driver towards the recorded state; three lead from any state to any other.
struct Step {
  ProcessState now, goal;
  Status (*move)(const Services&, const RecordedProcess&, const Deadline&);
};

Status Restore(const Services& services, const RecordedProcess& p, const Deadline& deadline) {
  return RestoreBack(services, {p}, deadline);
}
Status Unlock(const Services& services, const RecordedProcess& p, const Deadline& deadline) {
  return services.device->Unlock(p.id.pid, deadline);
}
// Asked before it is locked too: an agent that is at work in the driver then could not answer any
// more.
Status RefuseImported(const RecordedProcess& p) {
  STASIS_ASSIGN(const uint32_t memory, MemoryOf(p.id));
  if ((memory & (agent_protocol::kMemoryImported | agent_protocol::kMemoryShared)) == 0) return {};
  STASIS_ASSIGN(auto agent, FindAgent(p.id));
  if (agent && agent->hello().imported_ranges > 0) return Fail(HalfWayBack());
  return {};
}
Status Checkpoint(const Services& services, const RecordedProcess& p, const Deadline& deadline) {
  STASIS_TRY(RefuseImported(p));
  return services.device->Checkpoint(p.id.pid, deadline);
}
Status Lock(const Services& services, const RecordedProcess& p, const Deadline& deadline) {
  return services.device->Lock(p.id.pid, deadline);
}

Status LockToCheckpoint(const Services& services, const RecordedProcess& p,
                        const Deadline& deadline) {
  STASIS_TRY(RefuseImported(p));
  return Lock(services, p, deadline);
}

constexpr Step kStepsBack[] = {
    {ProcessState::kCheckpointed, ProcessState::kRunning, Restore},
    {ProcessState::kCheckpointed, ProcessState::kLocked, Restore},
    {ProcessState::kLocked, ProcessState::kRunning, Unlock},
    {ProcessState::kLocked, ProcessState::kCheckpointed, Checkpoint},
    {ProcessState::kRunning, ProcessState::kLocked, Lock},
    {ProcessState::kRunning, ProcessState::kCheckpointed, LockToCheckpoint},
};

const Step* StepBack(ProcessState now, ProcessState goal) {
  auto step = std::find_if(std::begin(kStepsBack), std::end(kStepsBack),
                           [&](const Step& s) { return s.now == now && s.goal == goal; });
  return step == std::end(kStepsBack) ? nullptr : step;
}

}  // namespace

Error HalfWayBack() {
  Error error{Code::kInternal};
  error.message =
      "its GPU memory came back half-way: it cannot be suspended again by the driver alone";
  error.hint = "`stasis recover` finishes the resume";
  return error;
}

Status ReturnToRecordedState(const Services& services, const RecordedProcess& process) {
  const Deadline deadline = Deadline::In(services.undo_timeout());
  // After a call that was given up the driver may still be at it, and finish between our look and
  // our step: a step that finds the process elsewhere is no failure, the next round looks again.
  // The driver tells nobody when it has come to rest, so it is asked again and again.
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
      STASIS_TRY(RememberMove(services.paths, process.id, process.map));
    }
    const Step* step = StepBack(*now, process.initial);
    if (step == nullptr) {
      // The driver does not know one that ends: it may have begun to since we looked.
      if (!process::IsAlive(process.id)) return {};
      return Fail(Code::kDataLoss,
                  fmt::format("the GPU state of process {} is {} and was {}", process.id.pid.value,
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
  return Fail(Code::kDeadlineExceeded, "its GPU state does not come to rest");
}

Status ReturnAllToRecordedState(const Services& services, const Processes& processes) {
  // Together, so that those on one GPU need not wait for each other's lock, and that either all
  // have room or none. Whoever gets there later (its driver was still at it) is restored alone.
  Status together = RestoreBack(services, ToBeRestored(services, processes),
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

}  // namespace stasis::gpu_state
