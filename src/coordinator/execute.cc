#include "coordinator/execute.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/install_layout.h"
#include "base/operation_id.h"
#include "coordinator/fault.h"
#include "coordinator/other_jobs.h"
#include "coordinator/shared_lots.h"
#include "jobs/store.h"

namespace stasis::coordinator {
namespace {

constexpr std::chrono::seconds kWindDown{20};
constexpr std::chrono::seconds kLongestHold{60};  // of a test's

// A plan that has failed over a process of the program. It is not tried again: that would suspend
// or end the others without whoever may have died of this attempt.
Error WithTheDead(Error error, const Operation& operation) {
  std::string dead;
  for (const auto& p : operation.device_processes) {
    if (process::IsAlive(p.id)) continue;
    dead += fmt::format("{}process {}", dead.empty() ? "" : " and ", p.id.pid.value);
  }
  if (dead.empty()) return error;
  error.message = fmt::format("{} ended in the middle of it ({})", dead, error.ToString());
  error.context.clear();
  error.code = Code::kUnavailable;
  if (!error.not_undone) {
    error.hint =
        "What is left of the program is as it was before. Another try would be of that alone.";
  }
  return error;
}

// Of a program whose first process has ended.
std::string WhatIsLeft(const Operation& operation) {
  std::vector<std::string> left;
  for (const auto& id : operation.members) {
    if (process::IsAlive(id)) left.push_back(ToString(id.pid));
  }
  if (left.empty()) return "nothing is left of it";
  return fmt::format("of its processes {} {} left. {}", fmt::join(left, ", "),
                     left.size() == 1 ? "is" : "are",
                     operation.job.empty() ? "One that does not run on can only be ended"
                                           : "`stasis kill " + operation.job + "` ends them");
}

// A plan that has failed over a program that is no more.
Error WithTheEnd(Error error, const Operation& operation, bool committed) {
  // In the middle of a plan nobody asks whether there is such a thing.
  if (error.code == Code::kNotFound) error.code = Code::kUnavailable;
  const bool ended = !operation.members.empty() && !process::IsAlive(operation.members.front());
  if (!ended && !committed) return WithTheDead(std::move(error), operation);
  // Of a dump that was committed the image is left, and the plan has said so.
  if (!ended || (operation.verb == "dump" && committed)) return error;
  error.not_undone = true;
  error.hint = "The program has ended in the meantime; " + WhatIsLeft(operation) + ".";
  return error;
}

// Another operation may be why a target is refused: its CRIU traces the program, and its agent has
// one client.
Result<Survey> SurveyUnlessBusy(Services& services, const Target& target) {
  auto survey = SurveyTarget(services, target);
  if (!survey) STASIS_TRY(CheckNotUnderWay(services.paths, target.root));
  return survey;
}

// What was named by its number may have become a job since (`stasis manage`), which would be ended
// and know of no image. Asked when the journal has the operation: from then on it becomes none.
Status CheckInNoJob(const Services& services, const Operation& operation) {
  if (!operation.job.empty() || operation.members.empty()) return {};
  const process::ProcessId& root = operation.members.front();
  STASIS_ASSIGN(auto job, jobs::Store(services.paths.jobs()).FindByProcess(root.pid));
  if (!job || !job->processes || job->processes->root != root) return {};
  return Fail(Code::kAborted,
              fmt::format("process {} has become job {} in the meantime", root.pid.value, job->id),
              fmt::format("nothing was done to it; `stasis {} {}` does it to the job",
                          operation.verb, job->id));
}

}  // namespace

device::ControlOptions ControlOptionsOf(const config::Settings& settings) {
  device::ControlOptions control;
  control.library = settings.cuda_library;
  control.settle_timeout = config::Milliseconds(settings.settle_timeout_s);
  return control;
}

Services MakeServices(const Paths& paths, const config::Settings& settings,
                      const std::string& stasis_version, bool keep_arenas, int inherit_fd) {
  device::ControlOptions control = ControlOptionsOf(settings);
  control.inherit_fd = inherit_fd;
  dataplane::MoverOptions mover;
  if (auto program = LibexecProgram("stasis-mover")) mover.program = *program;
  mover.library = settings.cuda_library;
  mover.inherit_fd = inherit_fd;
  // A mover for one driver is no mover for another.
  if (settings.mover_idle_s > 0 && !keep_arenas && mover.library.empty()) {
    mover.resident_dir = paths.movers();
    mover.idle_timeout = config::Milliseconds(settings.mover_idle_s);
  }
  return {paths, device::MakeDeviceControl(control),
          std::make_shared<dataplane::Resident>(std::move(mover), keep_arenas), stasis_version,
          settings};
}

Result<Session> OpenSession(const Paths& paths, const config::Settings& settings,
                            const std::string& verb, const std::string& stasis_version,
                            bool keep_arenas) {
  RaiseDescriptorLimit();
  STASIS_ASSIGN(Journal journal, Journal::Prepare(paths, verb));
  Session session;
  session.journal = std::make_shared<Journal>(std::move(journal));
  session.services =
      MakeServices(paths, settings, stasis_version, keep_arenas, session.journal->lock_fd());
  return session;
}

Result<OperationResult> RunInSession(
    const Paths& paths, const config::Settings& settings, const std::string& verb,
    const std::string& stasis_version,
    const std::function<Result<OperationResult>(Session&)>& operation) {
  auto run = [&]() -> Result<OperationResult> {
    STASIS_ASSIGN(Session session, OpenSession(paths, settings, verb, stasis_version));
    return operation(session);
  };
  auto again = [](const Result<OperationResult>& result) {
    return !result && TreeHasChanged(result.error()) && !result.error().not_undone;
  };
  auto first = run();
  if (!again(first)) return first;
  auto second = run();
  if (second) {
    second->notes.push_back(first.error().message + ", so it was undone and done once more");
  } else if (again(second)) {
    second.error().message += "; and so it was when it was tried before";
    second.error().hint =
        "Everything is as it was before. Try again when it does not start and end "
        "processes all the time.";
  }
  return second;
}

Result<bool> RecoverFirst(Session& session, const std::vector<process::ProcessId>& members) {
  STASIS_ASSIGN(auto report, Recover(session.services, Deadline::In(kWindDown)));
  for (const auto& recovered : report) {
    if (recovered.ok || recovered.under_way) continue;
    bool ours =
        std::any_of(recovered.members.begin(), recovered.members.end(), [&](const auto& id) {
          return std::find(members.begin(), members.end(), id) != members.end();
        });
    if (!ours) continue;
    return Fail(Code::kFailedPrecondition,
                "an earlier " + recovered.verb + " of " + recovered.target +
                    " was cut off and could not be undone: " + recovered.outcome,
                "`stasis recover` tries again");
  }
  return !report.empty();
}

Result<Survey> SurveyAfterRecovery(Session& session, const Target& target) {
  STASIS_ASSIGN(Survey survey, SurveyUnlessBusy(session.services, target));
  std::vector<process::ProcessId> members;
  for (const auto& member : survey.members()) members.push_back(member.id);
  STASIS_ASSIGN(const bool recovered, RecoverFirst(session, members));
  // Before anybody asks the program what another operation is just changing.
  for (const auto& id : members) STASIS_TRY(CheckNotUnderWay(session.services.paths, id));
  if (!recovered) return survey;
  return SurveyUnlessBusy(session.services, target);
}

OperationResult BeginResult(Services& services, const Survey& survey) {
  OperationResult result;
  result.operation = OperationId();
  result.target = survey.target.name;
  result.job = survey.target.job;
  result.pid = survey.target.root.pid.value;
  if (auto driver = services.device->Driver()) result.driver_kind = driver->kind;
  return result;
}

Result<OperationResult> Execute(Session& session, const Operation& operation, Plan& plan,
                                const OperationOptions& options, OperationResult result) {
  result.planned_phases = plan.PhaseNames();
  if (options.dry_run) return result;
  STASIS_TRY(InjectFault("begin", FaultPoint::kBefore, Deadline::In(kLongestHold)));
  STASIS_TRY(session.journal->Begin(operation));
  Status none = CheckInNoJob(session.services, operation);
  // So may any process of it.
  if (none && operation.verb == "dump") {
    none = CheckEndsNoOtherJob(session.services.paths, operation.job, operation.members,
                               operation.leave_running);
  }
  if (!none) {
    (void)session.journal->Finish();
    return Fail(std::move(none).error());
  }
  Plan::RunOptions run;
  run.journal = session.journal.get();
  run.progress = options.progress;
  run.cancelled = options.cancelled;
  run.timeout = options.timeout;
  auto account = plan.Run(run);
  if (!account) return Fail(WithTheEnd(std::move(account).error(), operation, plan.committed()));
  result.account = std::move(*account);
  if (Status finished = session.journal->Finish(); !finished) {
    result.notes.push_back("all is done, but its journal entry stays: " +
                           finished.error().ToString());
  }
  return result;
}

}  // namespace stasis::coordinator
