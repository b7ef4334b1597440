// Injects faults into phases, for tests of "every phase may fail, hang or die" on the program that
// is shipped.
//
//   STASIS_FAULT=PHASE:WHEN:HOW[,...]     WHEN: before | after
//   HOW: fail | hang | die | kill=PID | hold=PATH
//
// `before` takes effect when the phase is in the journal and nothing is done; `after` when
// everything is done and the journal does not say so yet. `hang` waits for the phase's deadline.
// `die` kills this process by SIGKILL; `kill=PID` kills another one and continues when that is
// ending. `hold` waits while a file of that name exists, and continues. `begin:before` takes effect
// after all checks, before there is a journal entry.
//
// A program that gained privileges at its start (set-user-id, file capabilities) ignores the
// variable.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis::plan {

enum class FaultPoint { kBefore, kAfter };

// Succeeds if no fault is set for this point. A malformed STASIS_FAULT is an error in the first
// phase.
Status InjectFault(const std::string& phase, FaultPoint point, const Deadline& deadline);

}  // namespace stasis::plan
