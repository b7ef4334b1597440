// By the shared path (gpu_state/shared_suspend.h, gpu_state/shared_resume.h):
//   suspend: data-room, gate-close, tree-check, data-export, gpu-control { data-release, gpu-lock,
//            gpu-checkpoint } beside data-save, data-commit, gpu-release-check, record, data-free
//   resume:  load-room, gpu-control { gpu-restore, gpu-unlock } beside data-load, data-return,
//   forget
// With a context that is kept:
//   suspend: data-room, gate-close, tree-check, data-export, data-release beside data-save,
//            data-commit, record, data-free
//   resume:  load-room, data-load, data-return, forget
//   suspend of that without --keep-context: as by the driver alone
// By the driver alone:
//   suspend: gpu-lock, tree-check, gpu-checkpoint, gpu-release-check, record
//   resume:  gpu-restore, gpu-unlock, forget
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "checks/nccl_neighbours.h"
#include "device/gpu_map.h"
#include "gpu_state/gpu_away.h"
#include "gpu_state/gpu_room.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/suspended.h"
#include "operations/execute.h"
#include "operations/operations.h"
#include "plan/journal.h"
#include "plan/plan.h"

namespace stasis::operations {
namespace {

using checks::Survey;
using checks::Target;
using device::ProcessState;
using gpu_state::Processes;
using gpu_state::Services;
using gpu_state::SharedResume;
using plan::Operation;
using plan::Phase;
using plan::PhaseScope;
using plan::Plan;

Status RequireDeviceProcess(const Survey& survey) {
  if (!survey.device_processes.empty()) return {};
  return Fail(Code::kUnimplemented, fmt::format("no process of {} uses a GPU (looked at {})",
                                                survey.target.name, survey.tree.members.size()));
}

// A driver restore that runs out of memory is final, so it is asked for beforehand.
Status CheckDeviceMemory(Services& services, const Survey& survey, const device::GpuMap& map) {
  std::map<device::GpuUuid, uint64_t> wanted;
  for (const auto& p : survey.device_processes) {
    if (!p.suspended() || p.gpus.size() != 1)
      continue;  // how it is spread over several GPUs is not recorded yet
    device::GpuUuid gpu = p.gpus[0];
    for (const auto& [from, to] : map) {
      if (from == p.gpus[0]) gpu = to;
    }
    wanted[gpu] += p.context_kept ? p.away_bytes : p.device_bytes;
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

// A context cannot move by itself.
Status CheckContextsStay(const Survey& survey, const device::GpuMap& map) {
  for (const auto& p : survey.device_processes) {
    if (!p.context_kept) continue;
    for (const auto& [from, to] : map) {
      if (from == to || std::find(p.gpus.begin(), p.gpus.end(), from) == p.gpus.end()) continue;
      return Fail(Code::kFailedPrecondition,
                  fmt::format("process {} was suspended with --keep-context, so its context is on "
                              "GPU {} still, and cannot move",
                              p.id.pid.value, from.value),
                  fmt::format("`stasis suspend {}` takes it away too; then it can be resumed onto "
                              "another GPU",
                              survey.target.name));
    }
  }
  return {};
}

std::string WhySuspendedAlready(const Survey& survey, bool keep_context) {
  if (keep_context && !survey.AllIn(ProcessState::kRunning)) {
    return "it was suspended already, and its context is away too";
  }
  return "it was suspended already";
}

// What a suspend writes down of each process that it has suspended, before it commits.
Status Remember(const Services& services, const Processes& processes,
                const gpu_state::SharedSuspend& shared, bool keep_context) {
  STASIS_ASSIGN(const auto driver, services.device->Driver());
  for (const auto& p : processes) {
    if (p.initial == ProcessState::kCheckpointed || (keep_context && p.context_kept)) continue;
    // The driver's share as of the survey, and exactly what the data plane took since or before.
    const uint64_t data = shared.BytesOf(p.id) + p.away_bytes;
    gpu_state::SuspendedProcess record{p.id, p.gpus, data, std::time(nullptr)};
    record.context_kept = keep_context;
    record.driver = gpu_state::DriverName(driver);
    if (!keep_context) record.device_bytes += p.device_bytes;
    STASIS_TRY(gpu_state::SaveSuspended(services.paths, record));
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
  STASIS_TRY(gpu_state::BringDataBack(services, running.device_processes));
  for (const auto& p : running.device_processes)
    STASIS_TRY(gpu_state::ForgetSuspended(services.paths, p.id));
  result.notes.push_back(away ? "its GPU state was back already; now it has its memory too"
                              : "it was running already");
  return result;
}

// A resume that has failed with some of the memory back: what has it cannot be suspended again by
// the driver alone, so all that can go forward does.
Error WithTheRestForward(Services& services, const Processes& processes, Error error) {
  auto back = gpu_state::IsBack(services, processes);
  if (!back || !*back) return error;
  const Processes running = gpu_state::AsRunning(processes);
  Status forward = gpu_state::ReturnAllToRecordedState(services, running);
  if (forward) forward = gpu_state::BringDataBack(services, running);
  if (forward) {
    for (const auto& p : running) (void)gpu_state::ForgetSuspended(services.paths, p.id);
    error.message += ". All of the program that is left runs on";
    error.hint = "`stasis recover` removes what was noted of it";
  } else {
    error.message +=
        ". What could be brought back runs on; left behind: " + forward.error().ToString();
  }
  return error;
}

Result<OperationResult> TrySuspend(Session& session, const Target& target,
                                   const OperationOptions& options) {
  Services& services = session.services;
  STASIS_ASSIGN(Survey survey, SurveyAfterRecovery(session, target));
  STASIS_TRY(RequireDeviceProcess(survey));
  OperationResult result = BeginResult(services, survey);
  result.device_bytes = survey.device_bytes();
  result.keep_context = options.keep_context;
  if (options.keep_context ? survey.AllSuspended() : survey.AllIn(ProcessState::kCheckpointed)) {
    result.notes.push_back(WhySuspendedAlready(survey, options.keep_context));
    return result;
  }
  if (!options.keep_context) {
    STASIS_TRY(checks::RefuseNcclNeighbours(
        services, survey, checks::Anew::kOfRunning, {},
        "`--keep-context` suspends it beside the other one; or suspend "
        "or end the other job first"));
  }
  STASIS_ASSIGN(Operation operation, survey.ToOperation("suspend"));
  Processes& processes = operation.device_processes;
  STASIS_ASSIGN(auto shared, gpu_state::SharedSuspend::Look(services, processes, options));
  gpu_state::LeaveToDriver(processes, *shared);
  result.left_to_driver = shared->left_to_driver();
  if (options.keep_context) result.staying_bytes = shared->driver_bytes();
  if (!options.ignore_memory && !options.keep_context) {
    STASIS_TRY(gpu_state::WithUnusedArenasAway(services, [&] {
      return gpu_state::CheckHostMemory(gpu_state::DriverBytes(processes, false), target.root.pid);
    }));
  }

  Plan plan("suspend");
  Phase tree_check;
  tree_check.name = "tree-check";
  tree_check.run = [&](PhaseScope&) -> Status {
    STASIS_TRY(checks::CheckStillOwn(survey));
    return checks::CheckSameUsers(services, survey);
  };
  if (options.keep_context) {
    gpu_state::AddDataAway(plan, *shared, std::move(tree_check));
  } else {
    gpu_state::AddGpuAway(plan, services, processes, *shared, std::move(tree_check));
    plan.Add(gpu_state::GpuReleaseCheck(services, processes));
  }
  Phase record;
  record.name = "record";
  record.commits = true;
  record.run = [&](PhaseScope&) {
    return Remember(services, processes, *shared, options.keep_context);
  };
  record.undo = [&]() -> Status {
    for (const auto& p : processes) STASIS_TRY(gpu_state::RememberAsBefore(services.paths, p));
    return {};
  };
  plan.Add(std::move(record));
  if (!shared->empty()) {
    Phase free;
    free.name = "data-free";
    free.run = [&](PhaseScope&) -> Status {
      result.shared_bytes = shared->bytes();
      shared->LetGo();
      result.saved = shared->saved();
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
  const bool upgraded =
      !options.keep_context &&
      std::any_of(processes.begin(), processes.end(), [](auto& p) { return p.context_kept; });
  if (upgraded) done.notes.push_back("its data was away already; now its context is too");
  return done;
}

}  // namespace

Result<OperationResult> Suspend(Session& session, const Target& target,
                                const OperationOptions& options) {
  auto result = TrySuspend(session, target, options);
  if (!result) return Fail(checks::WithChange(target, std::move(result).error()));
  return result;
}

Result<OperationResult> Resume(Session& session, const Target& target, const ResumeOptions& resume,
                               const OperationOptions& options) {
  Services& services = session.services;
  STASIS_ASSIGN(Survey survey, SurveyAfterRecovery(session, target));
  STASIS_TRY(RequireDeviceProcess(survey));
  OperationResult result = BeginResult(services, survey);
  if (survey.AllIn(ProcessState::kRunning) && !survey.AnySuspended()) {
    return FinishRunning(services, survey, options, std::move(result));
  }
  STASIS_ASSIGN(const auto driver, services.device->Driver());
  for (const auto& p : survey.device_processes) {
    if (p.suspended()) STASIS_TRY(gpu_state::CheckSameDriver(services.paths, p.id, driver));
  }
  STASIS_ASSIGN(auto gpus, services.device->Gpus());
  STASIS_ASSIGN(auto map, device::ParseGpuMap(resume.gpu_map, gpus, gpus));
  STASIS_TRY(CheckContextsStay(survey, map));
  STASIS_TRY(
      checks::RefuseNcclNeighbours(services, survey, checks::Anew::kOfAway, map,
                                   "it stays suspended: suspend the other job first, without "
                                   "--keep-context, or end it"));
  STASIS_TRY(gpu_state::WithIdleMoversAway(
      services, [&] { return CheckDeviceMemory(services, survey, map); }));
  result.device_bytes = survey.device_bytes(/*suspended=*/true);

  STASIS_ASSIGN(Operation operation, survey.ToOperation("resume"));
  Processes& processes = operation.device_processes;
  for (auto& p : processes) p.map = map;
  SharedResume shared(services, map);
  STASIS_TRY(shared.Look(processes));
  gpu_state::LeaveToDriver(processes, shared);
  result.shared_bytes = shared.bytes();
  Plan plan("resume");
  gpu_state::AddGpuBack(
      plan, services, processes,
      {shared.empty() ? nullptr : &shared, map, gpu_state::DriverBytes(processes, true)});
  Phase forget;
  forget.name = "forget";
  forget.run = [&](PhaseScope&) -> Status {
    for (const auto& p : survey.device_processes)
      STASIS_TRY(gpu_state::ForgetSuspended(services.paths, p.id));
    return shared.DropArenas();
  };
  plan.Add(std::move(forget));
  plan.OnFailureAfterCommit([&]() -> std::string {
    const Processes running = gpu_state::AsRunning(processes);
    Status status = gpu_state::ReturnAllToRecordedState(services, running);
    if (status) status = gpu_state::BringDataBack(services, running);
    return status ? "The GPU state is back and the program runs."
                  : "The GPU state is back, but the program is still locked: " +
                        status.error().ToString() +
                        ". `stasis resume` or `stasis recover` tries again.";
  });
  auto done = Execute(session, operation, plan, options, std::move(result));
  if (done || !done.error().not_undone) return done;
  return Fail(WithTheRestForward(services, processes, std::move(done).error()));
}

}  // namespace stasis::operations
