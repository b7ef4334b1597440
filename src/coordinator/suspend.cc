// By the shared path (shared_suspend.h, shared_resume.h):
//   suspend: data-room, gate-close, data-export, gpu-control { data-release, gpu-lock,
//            gpu-checkpoint } beside data-save, data-commit, gpu-release-check, record, data-free
//   resume:  load-room, gpu-control { gpu-restore, gpu-unlock } beside data-load, data-return,
//   forget
// By the driver alone:
//   suspend: gpu-lock, gpu-checkpoint, gpu-release-check, record
//   resume:  gpu-restore, gpu-unlock, forget
#include <fmt/format.h>

#include <ctime>
#include <map>

#include "coordinator/execute.h"
#include "coordinator/gpu_away.h"
#include "coordinator/gpu_room.h"
#include "coordinator/operations.h"
#include "coordinator/suspended.h"
#include "device/gpu_map.h"

namespace stasis::coordinator {
namespace {

using device::ProcessState;

Status RequireDeviceProcess(const Survey& survey) {
  if (!survey.device_processes.empty()) return {};
  return Fail(Code::kUnimplemented, fmt::format("no process of {} uses a GPU (looked at {})",
                                                survey.target.name, survey.tree.members.size()));
}

// A driver restore that runs out of memory is final, so it is asked for beforehand.
Status CheckDeviceMemory(Services& services, const Survey& survey, const device::GpuMap& map) {
  std::map<device::GpuUuid, uint64_t> wanted;
  for (const auto& p : survey.device_processes) {
    if (p.state != ProcessState::kCheckpointed || p.gpus.size() != 1)
      continue;  // how it is spread over several GPUs is not recorded yet
    device::GpuUuid gpu = p.gpus[0];
    for (const auto& [from, to] : map) {
      if (from == p.gpus[0]) gpu = to;
    }
    wanted[gpu] += p.device_bytes;
  }
  if (wanted.empty()) return {};
  STASIS_ASSIGN(auto gpus, services.device->Gpus());
  for (const auto& gpu : gpus) {
    auto it = wanted.find(gpu.uuid);
    if (it == wanted.end() || it->second <= gpu.free_bytes) continue;
    return Fail(Code::kResourceExhausted,
                fmt::format("GPU {} ({}) has {} MiB free, and the program needs {} MiB", gpu.index,
                            gpu.uuid.value, gpu.free_bytes >> 20, it->second >> 20),
                "suspend or end what else uses that GPU; `stasis gpu ls` lists it. The program "
                "stays suspended");
  }
  return {};
}

// The driver calls all of it running, which is not yet to say that it runs: another tool may have
// brought its GPU state back while its memory is with us, or its agent may wait for a stack limit.
Result<OperationResult> FinishRunning(Services& services, const Survey& survey,
                                      const OperationOptions& options, OperationResult result) {
  STASIS_ASSIGN(Operation running, survey.ToOperation("resume"));
  bool away;
  {
    SharedResume waiting(services, {});
    STASIS_TRY(waiting.Look(running.device_processes));
    away = !waiting.empty();
    result.shared_bytes = waiting.bytes();
  }
  if (options.dry_run) {
    result.notes.push_back(away ? "its GPU state is back already, and its memory would follow"
                                : "its GPU state is back already");
    return result;
  }
  STASIS_TRY(BringDataBack(services, running.device_processes));
  for (const auto& p : running.device_processes) STASIS_TRY(ForgetSuspended(services.paths, p.id));
  result.notes.push_back(away ? "its GPU state was back already; now it has its memory too"
                              : "it was running already");
  return result;
}

}  // namespace

Result<OperationResult> Suspend(Session& session, const Target& target,
                                const OperationOptions& options) {
  Services& services = session.services;
  STASIS_ASSIGN(Survey survey, SurveyAfterRecovery(session, target));
  STASIS_TRY(RequireDeviceProcess(survey));
  OperationResult result = BeginResult(services, survey);
  result.device_bytes = survey.device_bytes();
  if (survey.AllIn(ProcessState::kCheckpointed)) {
    result.notes.push_back("it was suspended already");
    return result;
  }
  STASIS_ASSIGN(Operation operation, survey.ToOperation("suspend"));
  Processes& processes = operation.device_processes;
  STASIS_ASSIGN(auto shared, SharedSuspend::Look(services, processes, options));
  LeaveToDriver(processes, *shared);
  result.left_to_driver = shared->left_to_driver();
  if (!options.ignore_memory) {
    STASIS_TRY(WithUnusedArenasAway(
        services, [&] { return CheckHostMemory(DriverBytes(processes, false), target.root.pid); }));
  }

  Plan plan("suspend");
  AddGpuAway(plan, services, processes, *shared);
  plan.Add(GpuReleaseCheck(services, processes));
  Phase record;
  record.name = "record";
  record.commits = true;
  record.run = [&](PhaseScope&) -> Status {
    for (const auto& p : processes) {
      if (p.initial == ProcessState::kCheckpointed) continue;
      // The driver's share as of the survey, and exactly what the data plane took since.
      const uint64_t bytes = p.device_bytes + shared->BytesOf(p.id);
      STASIS_TRY(SaveSuspended(services.paths, {p.id, p.gpus, bytes, std::time(nullptr)}));
    }
    return {};
  };
  record.undo = [&]() -> Status {
    for (const auto& p : survey.device_processes) {
      if (p.state == ProcessState::kCheckpointed) continue;
      STASIS_TRY(ForgetSuspended(services.paths, p.id));
    }
    return {};
  };
  plan.Add(std::move(record));
  if (!shared->empty()) {
    Phase free;
    free.name = "data-free";
    free.run = [&](PhaseScope&) -> Status {
      result.shared_bytes = shared->bytes();
      result.saved = shared->saved();
      shared->LetGo();
      return {};
    };
    plan.Add(std::move(free));
  }
  plan.OnFailureAfterCommit([&] {
    shared->LetGo();
    return std::string("The program is suspended; `stasis resume` brings it back.");
  });
  STASIS_ASSIGN(auto done, Execute(session, operation, plan, options, result));
  done.shared_bytes = result.shared_bytes;
  done.saved = result.saved;
  for (std::string& note : shared->notes()) done.notes.push_back(std::move(note));
  return done;
}

Result<OperationResult> Resume(Session& session, const Target& target, const ResumeOptions& resume,
                               const OperationOptions& options) {
  Services& services = session.services;
  STASIS_ASSIGN(Survey survey, SurveyAfterRecovery(session, target));
  STASIS_TRY(RequireDeviceProcess(survey));
  OperationResult result = BeginResult(services, survey);
  if (survey.AllIn(ProcessState::kRunning)) {
    return FinishRunning(services, survey, options, std::move(result));
  }
  STASIS_ASSIGN(auto gpus, services.device->Gpus());
  STASIS_ASSIGN(auto map, device::ParseGpuMap(resume.gpu_map, gpus, gpus));
  STASIS_TRY(
      WithIdleMoversAway(services, [&] { return CheckDeviceMemory(services, survey, map); }));
  result.device_bytes = survey.device_bytes(/*suspended=*/true);

  STASIS_ASSIGN(Operation operation, survey.ToOperation("resume"));
  Processes& processes = operation.device_processes;
  for (auto& p : processes) p.map = map;
  SharedResume shared(services, map);
  STASIS_TRY(shared.Look(processes));
  LeaveToDriver(processes, shared);
  result.shared_bytes = shared.bytes();
  Plan plan("resume");
  AddGpuBack(plan, services, processes,
             {shared.empty() ? nullptr : &shared, map, DriverBytes(processes, true)});
  Phase forget;
  forget.name = "forget";
  forget.run = [&](PhaseScope&) -> Status {
    for (const auto& p : survey.device_processes) STASIS_TRY(ForgetSuspended(services.paths, p.id));
    return shared.DropArenas();
  };
  plan.Add(std::move(forget));
  plan.OnFailureAfterCommit([&]() -> std::string {
    Processes running = processes;
    for (auto& p : running) p.initial = ProcessState::kRunning;
    Status status = ReturnAllToRecordedState(services, running);
    if (status) status = BringDataBack(services, running);
    return status ? "The GPU state is back and the program runs."
                  : "The GPU state is back, but the program is still locked: " +
                        status.error().ToString() +
                        ". `stasis resume` or `stasis recover` tries again.";
  });
  return Execute(session, operation, plan, options, std::move(result));
}

}  // namespace stasis::coordinator
