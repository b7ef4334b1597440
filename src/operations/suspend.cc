// Phases on the shared path (gpu_state/shared_suspend.h):
//   data-room, gate-close, tree-check, data-export,
//   gpu-control { data-release, gpu-lock, gpu-checkpoint } in parallel with data-save,
//   data-commit, gpu-release-check, record, data-free
// With --keep-context:
//   data-room, gate-close, tree-check, data-export, data-release in parallel with data-save,
//   data-commit, record, data-free
// On the opaque path, and in a suspend without --keep-context that follows one with it:
//   gpu-lock, tree-check, gpu-checkpoint, gpu-release-check, record
#include "operations/suspend.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "checks/nccl_neighbours.h"
#include "gpu_state/gpu_away.h"
#include "gpu_state/gpu_room.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/suspended.h"
#include "operations/execute.h"
#include "plan/journal.h"
#include "plan/plan.h"

namespace stasis::operations {
namespace {

using checks::Survey;
using checks::Target;
using device::ProcessState;
using gpu_state::Processes;
using gpu_state::Services;
using plan::Operation;
using plan::Phase;
using plan::PhaseScope;
using plan::Plan;

std::string WhySuspendedAlready(const Survey& survey, bool keep_context) {
  if (keep_context && !survey.AllIn(ProcessState::kRunning)) {
    return "it is already suspended, and its context has left the GPU too";
  }
  return "it was suspended already";
}

// Writes a record for each process that this suspend has suspended.
Status WriteRecords(const Services& services, const Processes& processes,
                    const gpu_state::SharedSuspend& shared, bool keep_context) {
  STASIS_ASSIGN(const auto driver, services.device->Driver());
  for (const auto& p : processes) {
    if (p.initial == ProcessState::kCheckpointed || (keep_context && p.context_kept)) continue;
    // The driver's share as surveyed, plus the exact size of the data that the movers have carried.
    const uint64_t data = shared.BytesOf(p.id) + p.away_bytes;
    gpu_state::SuspendedProcess record{p.id, p.gpus, data, std::time(nullptr)};
    record.context_kept = keep_context;
    record.visible = p.visible;
    record.driver = gpu_state::DriverName(driver);
    if (!keep_context) record.device_bytes += p.device_bytes;
    STASIS_TRY(gpu_state::SaveSuspended(services.paths, record));
  }
  return {};
}

// Adds a note if the suspend keeps contexts although the user has not asked for it.
OperationOptions ForDrivers(const OperationOptions& given, const Survey& survey,
                            std::vector<std::string>& notes) {
  OperationOptions options = ForDriversOf(survey, given);
  for (const auto& p : survey.device_processes) {
    if (!p.no_checkpoint || given.keep_context) continue;
    notes.push_back(fmt::format(
        "process {} uses HIP, whose driver cannot checkpoint it: its context stays on the GPU",
        p.id.pid.value));
    break;
  }
  return options;
}

Result<OperationResult> TrySuspend(Session& session, const Target& target,
                                   const OperationOptions& given) {
  Services& services = session.services;
  STASIS_ASSIGN(Survey survey, SurveyAfterRecovery(session, target));
  STASIS_TRY(RequireDeviceProcess(survey));
  OperationResult result = BeginResult(services, survey);
  const OperationOptions options = ForDrivers(given, survey, result.notes);
  result.device_bytes = survey.device_bytes();
  result.keep_context = options.keep_context;
  if (options.keep_context ? survey.AllSuspended() : survey.AllIn(ProcessState::kCheckpointed)) {
    result.notes.push_back(WhySuspendedAlready(survey, options.keep_context));
    return result;
  }
  if (!options.keep_context) {
    STASIS_TRY(
        checks::RefuseNcclNeighbours(services, survey, checks::NewContexts::kOfRunning, {},
                                     "use --keep-context; or suspend or end the other job first"));
  }
  STASIS_ASSIGN(Operation operation, survey.ToOperation("suspend"));
  Processes& processes = operation.device_processes;
  STASIS_ASSIGN(auto shared, gpu_state::SharedSuspend::Create(services, processes, options));
  gpu_state::SubtractShared(processes, *shared);
  result.left_to_driver = shared->left_to_driver();
  if (options.keep_context) result.staying_bytes = shared->driver_bytes();
  if (!options.ignore_memory && !options.keep_context) {
    STASIS_TRY(gpu_state::RetryWithoutUnusedArenas(services, [&] {
      return gpu_state::CheckHostMemory(gpu_state::DriverBytes(processes, false), target.root.pid);
    }));
  }

  Plan plan("suspend");
  Phase tree_check{.name = "tree-check", .run = [&](PhaseScope&) -> Status {
                     STASIS_TRY(checks::CheckStillOwn(survey));
                     return checks::CheckSameUsers(services, survey);
                   }};
  if (options.keep_context) {
    gpu_state::AddDataAway(plan, *shared, std::move(tree_check));
  } else {
    gpu_state::AddGpuAway(plan, services, processes, *shared, std::move(tree_check));
    plan.Add(gpu_state::GpuReleaseCheck(services, processes));
  }
  plan.Add({.name = "record",
            .run =
                [&](PhaseScope&) {
                  return WriteRecords(services, processes, *shared, options.keep_context);
                },
            .undo = [&]() -> Status {
              for (const auto& p : processes) {
                STASIS_TRY(gpu_state::RestoreSuspendRecord(services.paths, p));
              }
              return {};
            },
            .commits = true});
  if (!shared->empty()) {
    plan.Add({.name = "data-free", .run = [&](PhaseScope&) -> Status {
                result.shared_bytes = shared->bytes();
                shared->ReleaseAll();
                result.saved = shared->saved();
                return {};
              }});
  }
  plan.OnFailureAfterCommit([&] {
    shared->ReleaseAll();
    return std::string("The program is suspended; `stasis resume` resumes it.");
  });
  STASIS_ASSIGN(auto done, Execute(session, operation, plan, options, result));
  done.shared_bytes = result.shared_bytes;
  done.saved = result.saved;
  for (std::string& note : shared->notes()) done.notes.push_back(std::move(note));
  const bool upgraded =
      !options.keep_context &&
      std::any_of(processes.begin(), processes.end(), [](auto& p) { return p.context_kept; });
  if (upgraded) {
    done.notes.push_back("its data had already left the GPU; now its context has left it too");
  }
  return done;
}

}  // namespace

Status RequireDeviceProcess(const Survey& survey) {
  if (!survey.device_processes.empty()) return {};
  return Fail(Code::kUnimplemented, fmt::format("none of the {} processes of {} uses a GPU",
                                                survey.tree.members.size(), survey.target.name));
}

Result<OperationResult> Suspend(Session& session, const Target& target,
                                const OperationOptions& options) {
  auto result = TrySuspend(session, target, options);
  if (!result) return Fail(checks::AsTreeChange(target, std::move(result).error()));
  return result;
}

}  // namespace stasis::operations
