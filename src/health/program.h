// Finds properties of a program that a pause would disturb, or that CRIU restores only in part.
// They do not prevent an operation; checks/ finds properties that do.
#pragma once

#include <vector>

#include "health/findings.h"
#include "process/tree.h"

namespace stasis::health {

inline constexpr size_t kMostProcesses = 64;
// Returns at most one finding of each kind per process, in the tree's order. Examines only the
// first kMostProcesses processes.
std::vector<Finding> LookAtProgram(const process::ProcessTree& tree);

}  // namespace stasis::health
