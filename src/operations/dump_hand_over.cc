// The phases of a dump whose program moves to another host: hand-over, stop and switch.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

#include "jobs/store.h"
#include "operations/dump_run.h"

namespace stasis::operations {
namespace {

using plan::Phase;
using plan::PhaseScope;
using std::chrono::seconds;

constexpr seconds kSwitchTime{120};

}  // namespace

Phase DumpRun::HandOverPhase() {
  return {.name = kHandOver, .timeout = kHandOverTime, .run = [this](PhaseScope& scope) {
            return dump_.hand_over->Prepare(operation_.image, scope);
          }};
}

// Stops the processes by SIGSTOP, although CRIU holds them. If this process is killed from now on,
// CRIU releases them, but they stay stopped until recovery continues or ends them.
Phase DumpRun::Stop() {
  return {.name = "stop",
          .run = [this](PhaseScope&) -> Status {
            STASIS_TRY(MarkMoved(jobs::kPerhapsMovedTo));
            STASIS_TRY(session_.journal->NoteStopped(ToContinue()));
            StopLiving();
            return CheckHeldByCriu();
          },
          .undo = [this]() -> Status {
            ContinueLiving();
            return ClearDumped();
          }};
}

Phase DumpRun::Switch() {
  return {.name = HandOver::kSwitch,
          .timeout = kSwitchTime,
          .keeps_timeout = true,
          .run = [this](PhaseScope& scope) { return SwitchOver(scope); },
          .commits = true};
}

Status DumpRun::SwitchOver(PhaseScope& scope) {
  STASIS_TRY(session_.journal->NoteElsewhere(plan::Elsewhere::kPerhaps));
  auto switched = dump_.hand_over->Switch(scope);
  if (!switched) {
    // The program continues on this host, and not on the other one. This is recorded first, because
    // recovery needs it if this process is killed before the undo has ended.
    STASIS_TRY(session_.journal->NoteElsewhere(plan::Elsewhere::kNo));
    return Fail(std::move(switched).error());
  }
  switched_ = true;
  runs_there_ = *switched == HandOver::Switched::kRunsThere;
  if (runs_there_) {
    (void)session_.journal->NoteElsewhere(plan::Elsewhere::kYes);
    (void)MarkMoved(jobs::kMovedTo);
  }
  return {};
}

Status DumpRun::MarkMoved(std::string_view certainty) {
  if (operation_.job.empty()) return {};
  return jobs::Store(session_.services.paths.jobs())
      .MarkDumped(operation_.job, survey_.tree.root().id,
                  fmt::format("{}{}", certainty, dump_.hand_over->Place()));
}

// All of them: a process that was stopped before the dump may have been continued since.
void DumpRun::StopLiving() const {
  for (const process::ProcessId& id : living_) {
    if (process::IsAlive(id)) (void)::kill(id.pid.value, SIGSTOP);
  }
}

// Returns the processes that the undo continues: one that was stopped before the dump stays
// stopped.
std::vector<process::ProcessId> DumpRun::ToContinue() const {
  const auto& members = survey_.tree.members;
  std::vector<process::ProcessId> found;
  for (const process::ProcessId& id : living_) {
    const auto before = std::find_if(members.begin(), members.end(),
                                     [&](const auto& member) { return member.id == id; });
    if (before == members.end() || before->state != 'T') found.push_back(id);
  }
  return found;
}

void DumpRun::ContinueLiving() const {
  for (const process::ProcessId& id : ToContinue()) {
    if (process::IsAlive(id)) (void)::kill(id.pid.value, SIGCONT);
  }
}

// Returns an error if CRIU has died during the hand-over: the program has continued to run since
// then, so its image is out of date.
Status DumpRun::CheckHeldByCriu() const {
  for (const process::ProcessId& id : living_) {
    STASIS_ASSIGN(const auto credentials, process::ReadCredentials(id.pid));
    if (credentials.tracer.value != 0) continue;
    return Fail(Code::kUnavailable, fmt::format("CRIU no longer holds process {}", id.pid.value));
  }
  return {};
}

}  // namespace stasis::operations
