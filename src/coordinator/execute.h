// The way that every operation takes from its plan to its result.
#pragma once

#include "coordinator/journal.h"
#include "coordinator/operations.h"
#include "coordinator/plan.h"

namespace stasis::coordinator {

// Finishes or undoes what killed runs left. An entry that concerns `members` and cannot be cured is
// an error; any other is left for `stasis recover`.
// True when there was anything.
Result<bool> RecoverFirst(Session& session, const std::vector<process::ProcessId>& members);

// The survey of a target that no killed run has left half-way.
Result<Survey> SurveyAfterRecovery(Session& session, const Target& target);

// The parts of a result that are known before the plan runs.
OperationResult BeginResult(Services& services, const Survey& survey);

// Journals, runs and forgets: `result` comes back with the account.
Result<OperationResult> Execute(Session& session, const Operation& operation, Plan& plan,
                                const OperationOptions& options, OperationResult result);

}  // namespace stasis::coordinator
