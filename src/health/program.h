// What a pause would trip in a program, and what CRIU carries only in part: none of it stands in
// the way of an operation. What does is found by what the operations themselves ask (coordinator).
#pragma once

#include <vector>

#include "health/findings.h"
#include "process/tree.h"

namespace stasis::health {

// One finding of a kind for each process, in the tree's order, and of so many processes at most.
inline constexpr size_t kMostProcesses = 64;
std::vector<Finding> LookAtProgram(const process::ProcessTree& tree);

}  // namespace stasis::health
