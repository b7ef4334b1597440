#include "operations/execute.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/operation_id.h"
#include "checks/survey.h"
#include "jobs/store.h"
#include "plan/fault.h"

namespace stasis::operations {
namespace {

using checks::Survey;
using checks::Target;
using gpu_state::Services;
using plan::Operation;

constexpr std::chrono::seconds kWindDown{20};
constexpr std::chrono::seconds kLongestHold{60};  // time limit of an injected fault

// Names the processes that ended during a failed plan. The operation is not repeated, because a
// repetition would suspend or end only the remaining processes, and because the failed attempt may
// have killed the others.
Error ExplainEndedProcesses(Error error, const Operation& operation) {
  std::string ended;
  for (const auto& p : operation.device_processes) {
    if (process::IsAlive(p.id)) continue;
    ended += fmt::format("{}process {}", ended.empty() ? "" : " and ", p.id.pid.value);
  }
  if (ended.empty()) return error;
  error.message = fmt::format("{} ended during the operation ({})", ended, error.ToString());
  error.context.clear();
  error.code = Code::kUnavailable;
  if (!error.not_undone) {
    error.hint =
        "The rest of the program is as it was before. Another attempt would include only this "
        "rest.";
  }
  return error;
}

// Describes what remains of a program whose first process has ended.
std::string DescribeRest(const Operation& operation) {
  std::vector<std::string> left;
  for (const auto& id : operation.members) {
    if (process::IsAlive(id)) left.push_back(ToString(id.pid));
  }
  if (left.empty()) return "none of its processes is left";
  return fmt::format(
      "process {} {} left. {}", fmt::join(left, ", process "), left.size() == 1 ? "is" : "are",
      operation.job.empty() ? "Kill the processes that are not running"
                            : "`stasis kill " + operation.job + "` ends all processes of the job");
}

// Explains the error of a failed plan if the program, or a process of it, has ended.
Error ExplainEnd(Error error, const Operation& operation, bool committed) {
  // The target existed when the plan began, so the exit code for an unknown target would be wrong.
  if (error.code == Code::kNotFound) error.code = Code::kUnavailable;
  const bool ended = !operation.members.empty() && !process::IsAlive(operation.members.front());
  if (!ended && !committed) return ExplainEndedProcesses(std::move(error), operation);
  // After a committed dump the image contains the program, and the error says so already.
  if (!ended || (operation.verb == "dump" && committed)) return error;
  error.not_undone = true;
  error.hint = "The program has ended in the meantime; " + DescribeRest(operation) + ".";
  return error;
}

// Claims the members in the journal, so that no other operation can begin on them.
Status Claim(Session& session, const Target& target, std::vector<process::ProcessId> members) {
  Operation operation;
  operation.target = target.name;
  operation.job = target.job;
  STASIS_ASSIGN(process::Stat self, process::ReadStat({::getpid()}));
  operation.owner = self.id;
  STASIS_ASSIGN(operation.boot_id, process::BootId());
  operation.members = std::move(members);
  return session.journal->Claim(operation);
}

// Returns an error if an operation on one of the members was interrupted and could not be undone.
Status CheckRecovered(const std::vector<RecoveredOperation>& report,
                      const std::vector<process::ProcessId>& members) {
  for (const auto& recovered : report) {
    if (recovered.ok || recovered.under_way) continue;
    const bool ours =
        std::any_of(recovered.members.begin(), recovered.members.end(), [&](const auto& id) {
          return std::find(members.begin(), members.end(), id) != members.end();
        });
    if (!ours) continue;
    return Fail(Code::kFailedPrecondition,
                "an earlier " + recovered.verb + " of " + recovered.target +
                    " was interrupted and could not be undone: " + recovered.outcome,
                "`stasis recover` tries again");
  }
  return {};
}

// Returns an error if the user named a process by its pid and `stasis manage` has since made it a
// job, because the job's record would not list the image. Call it after the claim, because `manage`
// refuses a claimed process.
Status CheckInNoJob(const Session& session, const Target& target) {
  if (!target.job.empty()) return {};
  STASIS_ASSIGN(auto job,
                jobs::Store(session.services.paths.jobs()).FindByProcess(target.root.pid));
  if (!job || !job->processes || job->processes->root != target.root) return {};
  return Fail(
      Code::kAborted,
      fmt::format("process {} has become job {} in the meantime", target.root.pid.value, job->id),
      fmt::format("nothing was changed; use the job's name: `stasis {} {}`",
                  session.journal->verb(), job->id));
}

}  // namespace

Result<std::vector<RecoveredOperation>> RecoverFirst(Session& session) {
  return Recover(session.services, Deadline::In(kWindDown));
}

Result<Survey> SurveyAfterRecovery(Session& session, const Target& target) {
  STASIS_ASSIGN(const auto report, RecoverFirst(session));
  STASIS_TRY(plan::InjectFault("claim", plan::FaultPoint::kBefore, Deadline::In(kLongestHold)));
  STASIS_TRY(Claim(session, target, {target.root}));
  STASIS_TRY(CheckInNoJob(session, target));
  STASIS_ASSIGN(Survey survey, checks::SurveyTarget(session.services, target));
  std::vector<process::ProcessId> members;
  for (const auto& member : survey.members()) members.push_back(member.id);
  STASIS_TRY(CheckRecovered(report, members));
  STASIS_TRY(Claim(session, target, std::move(members)));
  return survey;
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

OperationOptions ForDriversOf(const checks::Survey& survey, OperationOptions options) {
  const auto& all = survey.device_processes;
  if (std::any_of(all.begin(), all.end(), [](const auto& p) { return p.no_checkpoint; })) {
    options.keep_context = options.no_checkpoint = true;
  }
  return options;
}

Result<OperationResult> Execute(Session& session, const Operation& operation, plan::Plan& plan,
                                const OperationOptions& options, OperationResult result) {
  result.planned_phases = plan.PhaseNames();
  if (options.dry_run) return result;
  STASIS_TRY(plan::InjectFault("begin", plan::FaultPoint::kBefore, Deadline::In(kLongestHold)));
  STASIS_TRY(session.journal->Begin(operation));
  plan::Plan::RunOptions run;
  run.journal = session.journal.get();
  run.progress = options.progress;
  run.cancelled = options.cancelled;
  run.timeout = options.timeout;
  auto account = plan.Run(run);
  if (!account) return Fail(ExplainEnd(std::move(account).error(), operation, plan.committed()));
  result.account = std::move(*account);
  if (Status finished = session.journal->Finish(); !finished) {
    result.notes.push_back("the operation succeeded, but its journal entry could not be removed: " +
                           finished.error().ToString());
  }
  return result;
}

}  // namespace stasis::operations
