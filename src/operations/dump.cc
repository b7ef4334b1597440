// The checks before a dump, and its result. dump_run.h has the phases.
#include "operations/dump.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "base/bounded.h"
#include "base/file.h"
#include "checks/before_dump.h"
#include "checks/nccl_neighbours.h"
#include "checks/readable.h"
#include "gpu_state/gpu_away.h"
#include "gpu_state/gpu_room.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/suspended.h"
#include "operations/dump_run.h"
#include "operations/execute.h"
#include "plan/journal.h"
#include "plan/plan.h"
#include "store/image_folder.h"
#include "store/user_limit.h"

namespace stasis::operations {
namespace {

using checks::Target;
using gpu_state::Processes;
using gpu_state::Services;

// Writes to the store's file system in a child process. A write to a file system that is frozen, or
// whose server or disk has failed, may never return.
Status CheckStoreAnswers(const Services& services, const std::string& store) {
  auto write = [&](const NoteStep& note) -> Result<std::string> {
    note("write to " + store);
    (void)Open(ExistingPart(AbsolutePath(store)), O_TMPFILE | O_WRONLY);
    return std::string();
  };
  BoundedOptions options;
  options.cancelled = checks::ReadingCancelled();
  auto answer =
      AskBounded(write, checks::ReadingDeadline(services.settings.phase_timeout_s), options);
  if (answer) return {};
  Error error = std::move(answer).error();
  if (error.code == Code::kDeadlineExceeded) {
    error.hint =
        "The file system is frozen (`fsfreeze`), or its disk or server does not answer; use "
        "another folder with -d.";
  }
  error.hint = "Everything is as it was before. " + error.hint;
  return Fail(std::move(error));
}

// Returns the default image name: subject and timestamp, with a number if that name is taken.
std::string DefaultName(const std::string& store, std::string subject, const Target& target) {
  if (subject.empty()) subject = target.job.empty() ? "pid" + target.name : target.job;
  const auto first = fmt::format("{}-{:%Y%m%d-%H%M%S}", subject, fmt::gmtime(std::time(nullptr)));
  std::string name = first;
  for (int n = 2; PathExists(store + "/" + name); ++n) name = fmt::format("{}-{}", first, n);
  return name;
}

Processes SuspendedOf(const Processes& processes) {
  Processes found;
  for (const auto& p : processes) {
    if (p.suspended()) found.push_back(p);
  }
  return found;
}

// Only the program that drives CRIU could load the plugin for HIP, and the other host of a
// migration has other GPUs.
Status RefuseWithoutDriver(const DumpOptions& dump, const OperationOptions& options) {
  if (!options.no_checkpoint) return {};
  if (dump.held) {
    return Fail(Code::kUnimplemented, "checkpoints of containers with HIP programs are not built",
                "`stasis suspend` and `stasis resume` work (docs/amd.md)");
  }
  if (dump.hand_over == nullptr) return {};
  return Fail(Code::kUnimplemented, "migrations of HIP programs are not built",
              "use `stasis dump` and `stasis restore` (docs/amd.md)");
}

Result<OperationResult> TryDump(Session& session, const Target& target, const DumpOptions& dump,
                                const OperationOptions& given) {
  Services& services = session.services;
  STASIS_TRY(CheckStoreAnswers(services, dump.store));
  STASIS_ASSIGN(checks::Survey survey, SurveyAfterRecovery(session, target));
  const OperationOptions options = ForDriversOf(survey, given);
  STASIS_TRY(RefuseWithoutDriver(dump, options));
  if (dump.leave_running) {
    STASIS_TRY(
        checks::RefuseNcclNeighbours(services, survey, checks::NewContexts::kOfRunning, {},
                                     "dump it without --leave-running, or suspend or end the other "
                                     "job first"));
  }
  checks::DumpFacts facts;
  if (dump.held) {
    STASIS_TRY(checks::CheckOnlyDeviceUsers(services, survey));
  } else {
    STASIS_ASSIGN(facts, checks::CheckBeforeDump(services, *session.criu, survey, dump.criu,
                                                 dump.leave_running));
    STASIS_TRY(criu::CheckForUser(dump.criu));
  }
  std::string name = dump.name.empty() ? DefaultName(dump.store, dump.subject, target) : dump.name;
  STASIS_TRY(store::CheckImageName(name));

  STASIS_ASSIGN(plan::Operation operation, survey.ToOperation("dump"));
  operation.image = AbsolutePath(dump.store) + "/" + name;
  operation.leave_running = dump.leave_running;
  Processes& processes = operation.device_processes;
  STASIS_ASSIGN(auto shared, gpu_state::SharedSuspend::Create(services, processes, options));
  gpu_state::SharedResume stored(services, {});
  STASIS_TRY(stored.FindArenas(SuspendedOf(processes)));
  stored.Disconnect();
  for (const auto& p : SuspendedOf(processes))
    STASIS_TRY(gpu_state::CheckNotMoved(services.paths, p.id));
  gpu_state::SubtractShared(processes, *shared);
  gpu_state::SubtractShared(processes, stored);
  if (!options.ignore_memory) {
    STASIS_TRY(gpu_state::RetryWithoutUnusedArenas(services, [&] {
      return gpu_state::CheckHostMemory(gpu_state::DriverBytes(processes, false),
                                        survey.target.root.pid);
    }));
  }
  if (PathExists(operation.image) && !(dump.held && dump.held->folder == operation.image)) {
    return Fail(Code::kAlreadyExists, "image " + operation.image + " exists already",
                "choose another --name, or delete it with `stasis image delete`");
  }
  STASIS_TRY(store::CheckImageLimit(dump.store, services.settings.most_image_bytes));
  if (!options.ignore_memory) {
    STASIS_TRY(checks::CheckImageSpace(services, survey, dump.store, dump.full,
                                       shared->bytes() + stored.bytes()));
  }
  OperationResult result = BeginResult(services, survey);
  result.image = operation.image;
  result.notes = facts.stdio.notes;
  result.device_bytes = survey.device_bytes();
  result.left_to_driver = shared->left_to_driver();
  if (!dump.leave_running) result.pid = 0;

  DumpRun run(session, std::move(survey), std::move(operation), dump, std::move(facts),
              std::move(name), *shared, stored, options.ignore_memory);
  plan::Plan plan = run.MakePlan();
  auto done = Execute(session, run.operation(), plan, options, std::move(result));
  if (!done) {
    Error error = std::move(done).error();
    if (!run.left_in_store().empty() && !error.not_undone) error.hint = run.left_in_store();
    return Fail(std::move(error));
  }
  result = std::move(*done);
  if (dump.leave_running) result.pause_s = Pause(result.account.phases);
  result.image_bytes = run.image_bytes();
  result.shared_bytes = run.shared_bytes();
  result.saved = shared->saved();
  for (std::string& note : shared->notes()) result.notes.push_back(std::move(note));
  auto part = [](const store::WrittenUnits& units) -> StoredPart {
    return {units.stored_bytes, units.new_bytes, units.shared_bytes, units.repeated_bytes,
            units.zero_bytes};
  };
  result.stored = {run.added_bytes(), part(run.blocks()), part(run.pages())};
  for (const auto* notes : {&run.blocks().notes, &run.pages().notes, &run.notes()}) {
    result.notes.insert(result.notes.end(), notes->begin(), notes->end());
  }
  return result;
}

}  // namespace

Result<OperationResult> Dump(Session& session, const Target& target, const DumpOptions& dump,
                             const OperationOptions& options) {
  auto result = TryDump(session, target, dump, options);
  if (!result) return Fail(checks::AsTreeChange(target, std::move(result).error()));
  return result;
}

}  // namespace stasis::operations
