// Finds properties of a program that a pause would disturb or that CRIU restores only in part. None
// of them prevents an operation. Obstacles to operations are found by checks/.
#pragma once

#include <vector>

#include "health/findings.h"
#include "process/tree.h"

namespace stasis::health {

// Returns at most one finding of each kind per process, in the tree's order, for at most this many
// processes.
inline constexpr size_t kMostProcesses = 64;
std::vector<Finding> LookAtProgram(const process::ProcessTree& tree);

}  // namespace stasis::health
