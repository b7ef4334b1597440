// Finishes or undoes what a killed run left. An operation that was committed is finished, any other
// is undone: the programs are where they were before it. A living program is not ended here: a dump
// that was committed but did not come to ending its program leaves both, the image and the program.
// Only what is left of one that CRIU had begun to end is ended, where that is known for certain.
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
  bool under_way = false;  // somebody still works on it: left alone
  std::string outcome;     // a sentence
  std::string id;          // of the operation that was cut off; may be empty
};

// `wait`: for helpers of a dead owner to come to an end. The error is that the journal itself
// cannot be read; what happened to each entry is in the list.
Result<std::vector<RecoveredOperation>> Recover(gpu_state::Services& services,
                                                const Deadline& wait);

}  // namespace stasis::operations
