// Finishes or undoes what a killed command left. A committed operation is finished; any other is
// undone, so that the programs are in the state from before it. A live program is not ended: a dump
// that was committed but had not begun to end its program leaves both the image and the program.
// The rest of a program is ended only if CRIU is known to have begun that.
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
  bool under_way = false;  // its command still runs: not touched
  std::string outcome;     // a sentence
  std::string id;          // of the interrupted operation; may be empty
};

// `wait` limits the wait for helpers of a dead owner to exit. Returns an error only if the journal
// cannot be read; the list gives the outcome of each entry.
Result<std::vector<RecoveredOperation>> Recover(gpu_state::Services& services,
                                                const Deadline& wait);

}  // namespace stasis::operations
