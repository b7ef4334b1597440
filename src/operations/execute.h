// The steps that all operations share before and after their plans.
#pragma once

#include "checks/survey.h"
#include "gpu_state/services.h"
#include "operations/options.h"
#include "operations/recover.h"
#include "operations/result.h"
#include "operations/session.h"
#include "plan/journal.h"
#include "plan/plan.h"

namespace stasis::operations {

// Finishes or undoes the operations of killed commands. If this fails for an operation, its entry
// stays for `stasis recover`.
Result<std::vector<RecoveredOperation>> RecoverFirst(Session& session);

// Recovers, then claims the target in the journal and surveys it. No other operation works on the
// target while the session exists.
Result<checks::Survey> SurveyAfterRecovery(Session& session, const checks::Target& target);

// Returns the parts of a result that are known before the plan runs.
OperationResult BeginResult(gpu_state::Services& services, const checks::Survey& survey);

// Returns the options with those that the drivers of the target require. If the driver cannot
// checkpoint one of the processes, all processes keep their contexts. The agents then block the
// calls that the driver's lock would otherwise block.
OperationOptions ForDriversOf(const checks::Survey& survey, OperationOptions options);

// Runs the plan, writes its phases to the journal, and returns `result` with the account. With
// dry_run only lists the phases.
Result<OperationResult> Execute(Session& session, const plan::Operation& operation,
                                plan::Plan& plan, const OperationOptions& options,
                                OperationResult result);

}  // namespace stasis::operations
