#include "coordinator/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/install_layout.h"

namespace stasis::coordinator {
namespace {

constexpr std::chrono::seconds kWindDown{20};
// Of an undo. Never shortened with the phases' own: a phase is mostly too slow because the data is
// large, and it is as large on its way back. Tests set it.
constexpr const char* kUndoTimeoutVariable = "STASIS_UNDO_TIMEOUT_S";
// How long a mover stays when its last command has ended. Long enough for a suspend, another
// program's turn and the way back; short enough that its context's memory is not missed.
constexpr const char* kMoverIdleVariable = "STASIS_MOVER_IDLE_S";
constexpr std::chrono::milliseconds kMoverIdle = std::chrono::seconds(60);

Result<std::chrono::milliseconds> MoverIdle() {
  const char* text = std::getenv(kMoverIdleVariable);
  if (text == nullptr) return kMoverIdle;
  int64_t seconds = -1;
  const char* end = text + std::strlen(text);
  auto parsed = std::from_chars(text, end, seconds);
  if (parsed.ec != std::errc{} || parsed.ptr != end || seconds < 0 || seconds > 86400) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("{} is '{}'; it is a number of seconds from 0 (movers do not stay) to "
                            "86400",
                            kMoverIdleVariable, text));
  }
  return std::chrono::seconds(seconds);
}

// How long a driver may take to come to rest after a helper was lost. Tests set it: each hang costs
// them a quarter of it.
constexpr const char* kSettleTimeoutVariable = "STASIS_SETTLE_TIMEOUT_S";

std::optional<std::chrono::seconds> SecondsFrom(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  return std::chrono::seconds(std::clamp(std::atol(text), 1L, 86400L));
}

// A plan that has failed over a program that is no more.
Error WithTheEnd(Error error, const Operation& operation, bool committed) {
  // In the middle of a plan nobody asks whether there is such a thing.
  if (error.code == Code::kNotFound) error.code = Code::kUnavailable;
  bool ended = !operation.members.empty() && !process::IsAlive(operation.members.front());
  // Of a dump that was committed the image is left, and the plan has said so.
  if (!ended || (operation.verb == "dump" && committed)) return error;
  error.not_undone = true;
  error.hint = "The program has ended in the meantime; nothing is left of it.";
  return error;
}

}  // namespace

Services MakeServices(const Paths& paths, const std::string& stasis_version, bool keep_arenas,
                      int inherit_fd) {
  device::ControlOptions control;
  control.inherit_fd = inherit_fd;
  auto idle = MoverIdle();
  if (auto seconds = SecondsFrom(kSettleTimeoutVariable)) control.settle_timeout = *seconds;
  dataplane::MoverOptions mover;
  if (auto program = LibexecProgram("stasis-mover")) mover.program = *program;
  if (const char* library = std::getenv("STASIS_CUDA_LIBRARY")) mover.library = library;
  mover.inherit_fd = inherit_fd;
  // A mover for one driver is no mover for another.
  if (idle && idle->count() > 0 && !keep_arenas && mover.library.empty()) {
    mover.resident_dir = paths.movers();
    mover.idle_timeout = *idle;
  }
  Services services{paths, device::MakeDeviceControl(control),
                    std::make_shared<dataplane::Resident>(std::move(mover), keep_arenas),
                    stasis_version};
  if (auto seconds = SecondsFrom(kUndoTimeoutVariable)) services.undo_timeout = *seconds;
  return services;
}

Result<Session> OpenSession(const Paths& paths, const std::string& verb,
                            const std::string& stasis_version, bool keep_arenas) {
  STASIS_ASSIGN(Journal journal, Journal::Prepare(paths, verb));
  Session session;
  session.journal = std::make_shared<Journal>(std::move(journal));
  STASIS_TRY(MoverIdle());
  session.services = MakeServices(paths, stasis_version, keep_arenas, session.journal->lock_fd());
  return session;
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
  STASIS_ASSIGN(Survey survey, SurveyTarget(session.services, target));
  std::vector<process::ProcessId> members;
  for (const auto& member : survey.tree.members) members.push_back(member.id);
  STASIS_ASSIGN(const bool recovered, RecoverFirst(session, members));
  // Before anybody asks the program what another operation is just changing.
  for (const auto& id : members) STASIS_TRY(CheckNotUnderWay(session.services.paths, id));
  if (!recovered) return survey;
  return SurveyTarget(session.services, target);
}

OperationResult BeginResult(Services& services, const Survey& survey) {
  OperationResult result;
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
  STASIS_TRY(session.journal->Begin(operation));
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
