// Faults on demand, so that "every phase may fail, hang or die" is a test and not a hope.
//
//   STASIS_FAULT=PHASE:WHEN:HOW[,...]     WHEN: before | after
//   HOW: fail | hang | die | kill=PID | hold=PATH
//
// `before` strikes when the phase's intent is in the journal and nothing is done; `after` when all
// is done and nothing says so yet. `hang` lasts until the phase's deadline; `die` is SIGKILL to our
// own process, `kill=PID` to another one, as a part of the program that dies there; the phase goes
// on when that is on its way out. `hold` lasts as long as there is a file of that name, and the
// phase then goes on. `begin:before` strikes when all has been looked at, before there is a journal
// entry.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis::plan {

enum class FaultPoint { kBefore, kAfter };

// Success when no fault is asked for here. A malformed STASIS_FAULT is an error of the first phase.
Status InjectFault(const std::string& phase, FaultPoint point, const Deadline& deadline);

}  // namespace stasis::plan
