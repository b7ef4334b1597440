// Taking away what a half-done operation made: used by the undo of the plans and by `recover`
// alike.
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checkpoint {

// Where an operation keeps CRIU's log until it is over; `owner` is the process that runs it.
std::string WorkFolder(const Paths& paths, const process::ProcessId& owner);

// Removes what a killed dump left beside the place where its image was to be (or is). A store that
// stops answering is no error: then the result says what may be left there; else it is empty.
Result<std::string> SweepStoreOf(const std::string& image);

// Kills a restored tree and its shim and waits until nothing of them is left. Either id may be 0.
Status EndTree(const process::ProcessId& shim, const process::ProcessId& root);

// Kills these processes, and what they have below them, and waits until they have ended.
Status EndAll(const std::vector<process::ProcessId>& processes);

}  // namespace stasis::checkpoint
