// The way that every operation takes from its plan to its result.
#pragma once

#include "checks/survey.h"
#include "gpu_state/services.h"
#include "operations/operations.h"
#include "operations/recover.h"
#include "plan/journal.h"
#include "plan/plan.h"

namespace stasis::operations {

// Finishes or undoes what killed runs left, as far as possible; the rest is left for `stasis
// recover`.
Result<std::vector<RecoveredOperation>> RecoverFirst(Session& session);

// The survey of a target that no killed run has left half-way. No other operation works on it as
// long as the session lives.
Result<checks::Survey> SurveyAfterRecovery(Session& session, const checks::Target& target);

// The parts of a result that are known before the plan runs.
OperationResult BeginResult(gpu_state::Services& services, const checks::Survey& survey);

// Journals, runs and forgets: `result` comes back with the account.
Result<OperationResult> Execute(Session& session, const plan::Operation& operation,
                                plan::Plan& plan, const OperationOptions& options,
                                OperationResult result);

}  // namespace stasis::operations
