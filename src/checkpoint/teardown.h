// Removes files and processes of an unfinished operation. Used by the undo of plans and by
// `recover`.
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checkpoint {

// Returns the folder of CRIU's log during an operation; `owner` is the process that runs it.
std::string WorkFolder(const Paths& paths, const process::ProcessId& owner);

// Removes the hidden folders that a killed dump left in the store of its image. If the store does
// not answer, returns a message that folders may be left; otherwise returns an empty string.
Result<std::string> SweepStoreOf(const std::string& image);

// Kills a restored process tree and its shim, and waits until all processes have ended. Either id
// may be 0.
Status EndTree(const process::ProcessId& shim, const process::ProcessId& root);

// Kills these processes and their descendants, and waits until they have ended.
Status EndAll(const std::vector<process::ProcessId>& processes);

}  // namespace stasis::checkpoint
