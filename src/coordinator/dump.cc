// What is asked before a dump, and its result. What it does: dump_run.h.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/file.h"
#include "coordinator/dump_run.h"
#include "coordinator/execute.h"
#include "coordinator/gpu_away.h"
#include "coordinator/gpu_room.h"
#include "coordinator/operations.h"
#include "coordinator/suspended.h"
#include "criu/preflight.h"
#include "criu/probe.h"
#include "image/image_folder.h"
#include "jobs/store.h"
#include "store/store_folder.h"

namespace stasis::coordinator {
namespace {

using device::ProcessState;
using std::chrono::seconds;

constexpr seconds kProbeTimeout{10};

std::string DefaultName(const Target& target) {
  std::string subject = target.job.empty() ? "pid" + target.name : target.job;
  return fmt::format("{}-{:%Y%m%d-%H%M%S}", subject, fmt::gmtime(std::time(nullptr)));
}

// At least the GPU's data must fit. The store may not exist yet: then where it will be.
Status CheckStoreSpace(const std::string& store, uint64_t bytes) {
  std::string folder = store;
  while (!PathExists(folder) && folder.find('/') != std::string::npos) {
    folder.resize(folder.rfind('/'));
  }
  if (folder.empty()) folder = "/";
  if (::access(folder.c_str(), W_OK) != 0) {
    return FailErrno(errno, "cannot write images to " + store);
  }
  return store::CheckSpace(folder, bytes);
}

// Whether an earlier image of the job is in the store: then how much of its GPU memory has to be
// written is seen only when it is, and a disk that is too full is found out by then.
bool HasEarlierImage(const Paths& paths, const std::string& job, const std::string& store) {
  if (job.empty()) return false;
  auto loaded = jobs::Store(paths.jobs()).Load(job);
  if (!loaded) return false;
  auto is_there = [&](const jobs::Checkpoint& checkpoint) {
    return checkpoint.image.substr(0, checkpoint.image.rfind('/')) == AbsolutePath(store) &&
           PathExists(checkpoint.image + "/" + image::kManifestName);
  };
  return std::any_of(loaded->checkpoints.begin(), loaded->checkpoints.end(), is_there);
}

Processes Suspended(const Processes& processes) {
  Processes found;
  for (const auto& p : processes) {
    if (p.initial == ProcessState::kCheckpointed) found.push_back(p);
  }
  return found;
}

}  // namespace

Result<OperationResult> Dump(Session& session, const Target& target, const DumpOptions& dump,
                             const OperationOptions& options) {
  Services& services = session.services;
  STASIS_ASSIGN(Survey survey, SurveyAfterRecovery(session, target));
  STASIS_ASSIGN(std::string criu_path, criu::FindCriu());
  STASIS_TRY(criu::CheckPrivileges());
  STASIS_ASSIGN(std::string criu_version, criu::FoundVersion(Deadline::In(kProbeTimeout)));
  STASIS_TRY(CheckOnlyDeviceUsers(services, survey));
  STASIS_TRY(CheckNothingOutside(services, survey));
  STASIS_ASSIGN(criu::StdioPlan stdio, criu::PlanStdio(survey.tree, LogOf(services, target)));
  STASIS_TRY(criu::Preflight(survey.tree, dump.criu, stdio));
  std::string name = dump.name.empty() ? DefaultName(target) : dump.name;
  STASIS_TRY(image::CheckImageName(name));

  STASIS_ASSIGN(Operation operation, survey.ToOperation("dump"));
  operation.image = AbsolutePath(dump.store) + "/" + name;
  operation.leave_running = dump.leave_running;
  Processes& processes = operation.device_processes;
  STASIS_ASSIGN(auto shared, SharedSuspend::Look(services, processes, options));
  SharedResume stored(services, {});
  STASIS_TRY(stored.Look(Suspended(processes)));
  stored.Disconnect();
  for (const auto& p : Suspended(processes)) STASIS_TRY(CheckNotMoved(services.paths, p.id));
  LeaveToDriver(processes, *shared);
  LeaveToDriver(processes, stored);
  if (!options.ignore_memory) {
    STASIS_TRY(WithUnusedArenasAway(services, [&] {
      return CheckHostMemory(DriverBytes(processes, false), survey.target.root.pid);
    }));
  }
  if (PathExists(operation.image)) {
    return Fail(Code::kAlreadyExists, "there is an image " + operation.image + " already",
                "choose another --name, or `stasis image delete` it");
  }
  if (!options.ignore_memory) {
    uint64_t device_bytes = survey.device_bytes() + survey.device_bytes(/*suspended=*/true);
    if (!dump.full && HasEarlierImage(services.paths, target.job, dump.store)) {
      device_bytes -= std::min(device_bytes, shared->bytes() + stored.bytes());
    }
    STASIS_TRY(CheckStoreSpace(dump.store, device_bytes));
  }
  OperationResult result = BeginResult(services, survey);
  result.image = operation.image;
  result.notes = stdio.notes;
  result.device_bytes = survey.device_bytes();
  result.left_to_driver = shared->left_to_driver();
  if (!dump.leave_running) result.pid = 0;

  DumpRun run(session, std::move(survey), std::move(operation), dump, std::move(criu_path),
              std::move(criu_version), std::move(stdio), std::move(name), *shared, stored);
  Plan plan = run.MakePlan();
  STASIS_ASSIGN(result, Execute(session, run.operation(), plan, options, std::move(result)));
  if (dump.leave_running) result.pause_s = Pause(result.account.phases);
  result.image_bytes = run.image_bytes();
  result.shared_bytes = run.shared_bytes();
  result.saved = shared->saved();
  for (std::string& note : shared->notes()) result.notes.push_back(std::move(note));
  result.stored = {run.added_bytes(),         run.blocks().stored_bytes,   run.blocks().new_bytes,
                   run.blocks().shared_bytes, run.blocks().repeated_bytes, run.blocks().zero_bytes};
  for (const std::string& note : run.blocks().notes) result.notes.push_back(note);
  return result;
}

}  // namespace stasis::coordinator
