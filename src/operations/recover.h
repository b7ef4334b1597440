// Recovers the operations of killed commands. A committed operation is finished. Any other is
// undone, which returns its program to the state before the operation. Recovery does not end a
// program that can still run: if a dump was committed but had not begun to end its program, both
// image and program stay. The remaining processes of a program are ended only if CRIU is known to
// have begun to end it.
#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"
#include "gpu_state/services.h"
#include "process/proc.h"

namespace stasis::operations {

struct RecoveredOperation {
  std::string verb;
  std::string target;
  std::vector<process::ProcessId> members;
  bool ok = false;
  bool under_way = false;  // its command or a helper is still running, so it was left alone
  std::string outcome;     // a sentence
  std::string id;          // id of the interrupted operation; may be empty
};

// Recovers all entries of the journal, and waits until `wait` for helpers of dead commands to exit.
// Returns the outcome of each entry, or an error if the journal cannot be read.
Result<std::vector<RecoveredOperation>> Recover(gpu_state::Services& services,
                                                const Deadline& wait);

}  // namespace stasis::operations
