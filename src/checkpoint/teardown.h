// Removes what an unfinished operation made. Used by the undo of plans and by `recover`.
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checkpoint {

// Returns the folder of CRIU's log during an operation; `owner` is the process that runs it.
std::string WorkFolder(const Paths& paths, const process::ProcessId& owner);

// Removes what a killed dump left beside the place of its image. Returns an empty string, or a
// description of what may be left if the store does not answer.
Result<std::string> SweepStoreOf(const std::string& image);

// Kills a restored tree and its shim, and waits until all their processes have ended. Either id may
// be 0.
Status EndTree(const process::ProcessId& shim, const process::ProcessId& root);

// Kills these processes and their descendants, and waits until they have ended.
Status EndAll(const std::vector<process::ProcessId>& processes);

}  // namespace stasis::checkpoint
