// Injects faults into phases of the shipped program, for tests that make every phase fail, hang or
// die.
//
//   STASIS_FAULT=PHASE:WHEN:HOW[,...]     WHEN: before | after
//   HOW: fail | hang | die | kill=PID | hold=PATH
//
// `before` takes effect after the phase's begin is in the journal and before its work. `after`
// takes effect after its work and before its end is in the journal. `hang` waits for the phase's
// deadline. `die` kills this process by SIGKILL. `kill=PID` kills another process and continues
// when that process is exiting. `hold` waits while a file of that name exists, and continues.
// `begin:before` takes effect after all checks, before there is a journal entry.
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
