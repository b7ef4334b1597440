// Phases on the shared path (gpu_state/shared_resume.h):
//   load-room, gpu-control { gpu-restore, gpu-unlock } in parallel with data-load, data-return,
//   forget
// With contexts that were kept:
//   load-room, data-load, data-return, forget
// By the driver alone:
//   gpu-restore, gpu-unlock, forget
#include "operations/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "checks/nccl_neighbours.h"
#include "device/gpu_map.h"
#include "gpu_state/gpu_away.h"
#include "gpu_state/gpu_room.h"
#include "gpu_state/suspended.h"
#include "operations/choose_gpus.h"
#include "operations/execute.h"
#include "operations/suspend.h"
#include "plan/journal.h"
#include "plan/plan.h"

namespace stasis::operations {
namespace {

using checks::Survey;
using device::ProcessState;
using gpu_state::Processes;
using gpu_state::Services;
using gpu_state::SharedResume;
using plan::Operation;
using plan::PhaseScope;
using plan::Plan;

// Checks the free GPU memory, because a restore by the driver that runs out of memory cannot be
// repeated.
Status CheckDeviceMemory(Services& services, const Survey& survey, const device::GpuMap& map) {
  std::map<device::GpuUuid, uint64_t> wanted;
  for (const auto& p : survey.device_processes) {
    // For a process on several GPUs, the record does not say how much memory is on each GPU.
    if (!p.suspended() || p.gpus.size() != 1) continue;
    wanted[device::Mapped(map, p.gpus[0])] += p.context_kept ? p.away_bytes : p.device_bytes;
  }
  if (wanted.empty()) return {};
  STASIS_ASSIGN(auto gpus, services.device->Gpus());
  for (const auto& gpu : gpus) {
    auto it = wanted.find(gpu.uuid);
    if (it == wanted.end() || it->second <= gpu.free_bytes) continue;
    return Fail(Code::kResourceExhausted,
                fmt::format("GPU {} ({}) has {} MiB free, and the program needs {} MiB", gpu.index,
                            gpu.uuid.value, gpu.free_bytes >> 20, it->second >> 20),
                "suspend or end other programs on that GPU; `stasis gpu ls` lists them. The "
                "program stays suspended");
  }
  return {};
}

// Returns an error if `map` would move a context that was kept, which is impossible.
Status CheckContextsStay(const Survey& survey, const device::GpuMap& map) {
  for (const auto& p : survey.device_processes) {
    if (!p.context_kept) continue;
    for (const auto& [from, to] : map) {
      if (from == to || std::find(p.gpus.begin(), p.gpus.end(), from) == p.gpus.end()) continue;
      return Fail(
          Code::kFailedPrecondition,
          fmt::format("process {} was suspended with --keep-context, so its context is still "
                      "on GPU {} and cannot move",
                      p.id.pid.value, from.value),
          p.no_checkpoint ? ""
                          : fmt::format("`stasis suspend {}` takes the context away too; then "
                                        "it can be resumed onto another GPU",
                                        survey.target.name));
    }
  }
  return {};
}

Result<device::GpuMap> ChooseMap(const Survey& survey, const ResumeOptions& resume,
                                 const std::vector<device::Gpu>& gpus) {
  if (!resume.granted.empty()) {
    return ChooseGranted(resume.gpu_map, resume.granted, GpusOf(survey.RecordedProcesses()), gpus,
                         gpus);
  }
  if (resume.gpu_map == "auto") return device::GpuMap{};  // no GPU of the program is missing here
  return device::ParseGpuMap(resume.gpu_map, gpus, gpus);
}

// Resumes a target whose processes the driver reports as running. They may be blocked nevertheless:
// another tool may have restored the driver's state while the memory is still in arenas, or an
// agent may wait to set a stack limit.
Result<OperationResult> FinishRunning(Services& services, const Survey& survey,
                                      const OperationOptions& options, OperationResult result) {
  STASIS_ASSIGN(Operation running, survey.ToOperation("resume"));
  bool away;
  {
    SharedResume waiting(services, {});
    STASIS_TRY(waiting.FindArenas(running.device_processes));
    away = !waiting.empty();
    result.shared_bytes = waiting.bytes();
  }
  if (options.dry_run) {
    result.notes.push_back(away ? "the driver's part of its GPU state is already restored; the GPU "
                                  "memory in arenas would be restored"
                                : "its GPU state is already restored");
    return result;
  }
  STASIS_TRY(gpu_state::ReturnStoredData(services, running.device_processes));
  for (const auto& p : running.device_processes)
    STASIS_TRY(gpu_state::ForgetSuspended(services.paths, p.id));
  result.notes.push_back(away ? "the driver's part of its GPU state was already restored; the GPU "
                                "memory in arenas is now restored too"
                              : "it was running already");
  return result;
}

// If a failed resume has returned memory to some processes, finishes it for all processes that are
// still alive, because the driver alone cannot suspend those processes again. Returns `error` with
// the outcome.
Error FinishPartlyResumed(Services& services, const Processes& processes, Error error) {
  auto back = gpu_state::AnyMemoryReturned(services, processes);
  if (!back || !*back) return error;
  const Processes running = gpu_state::AsRunning(processes);
  Status forward = gpu_state::ReturnAllToRecordedState(services, running);
  if (forward) forward = gpu_state::ReturnStoredData(services, running);
  if (forward) {
    for (const auto& p : running) (void)gpu_state::ForgetSuspended(services.paths, p.id);
    error.message += ". The other processes are running";
    error.hint = "`stasis recover` removes the journal entry";
  } else {
    error.message += ". A part of the program is running; the rest was not resumed: " +
                     forward.error().ToString();
  }
  return error;
}

}  // namespace

Result<OperationResult> Resume(Session& session, const checks::Target& target,
                               const ResumeOptions& resume, const OperationOptions& options) {
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
  STASIS_ASSIGN(auto map, ChooseMap(survey, resume, gpus));
  STASIS_TRY(CheckContextsStay(survey, map));
  STASIS_TRY(
      checks::RefuseNcclNeighbours(services, survey, checks::NewContexts::kOfSuspended, map,
                                   "the program stays suspended: suspend the other job first, "
                                   "without --keep-context, or end it"));
  STASIS_TRY(gpu_state::RetryWithoutIdleMovers(
      services, [&] { return CheckDeviceMemory(services, survey, map); }));
  result.device_bytes = survey.device_bytes(/*suspended=*/true);

  STASIS_ASSIGN(Operation operation, survey.ToOperation("resume"));
  Processes& processes = operation.device_processes;
  for (auto& p : processes) p.map = map;
  SharedResume shared(services, map);
  STASIS_TRY(shared.FindArenas(processes));
  gpu_state::SubtractShared(processes, shared);
  result.shared_bytes = shared.bytes();
  Plan plan("resume");
  gpu_state::AddGpuBack(
      plan, services, processes,
      {shared.empty() ? nullptr : &shared, map, gpu_state::DriverBytes(processes, true)});
  plan.Add({.name = "forget", .run = [&](PhaseScope&) -> Status {
              for (const auto& p : survey.device_processes) {
                STASIS_TRY(gpu_state::ForgetSuspended(services.paths, p.id));
              }
              return shared.ReturnArenas();
            }});
  plan.OnFailureAfterCommit([&]() -> std::string {
    const Processes running = gpu_state::AsRunning(processes);
    Status status = gpu_state::ReturnAllToRecordedState(services, running);
    if (status) status = gpu_state::ReturnStoredData(services, running);
    return status
               ? "The GPU state is restored and the program is running."
               : "The GPU state is restored, but the program is still locked: " +
                     status.error().ToString() + ". `stasis resume` or `stasis recover` retries.";
  });
  auto done = Execute(session, operation, plan, options, std::move(result));
  if (done) done->saved.cold = shared.cold_bytes();
  if (done || !done.error().not_undone) return done;
  shared.ReleaseArenas();
  return Fail(FinishPartlyResumed(services, processes, std::move(done).error()));
}

}  // namespace stasis::operations
