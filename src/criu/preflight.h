// Finds obstacles to a dump before the program is stopped, and reports each with its name, process,
// descriptor and remedy. CRIU would find the same obstacles, but only after it has stopped the
// program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "criu/options.h"
#include "criu/stdio.h"
#include "process/tree.h"

namespace stasis::criu {

struct Obstacle {
  std::string name;  // id in docs/check.md: "io_uring", "tcp", "file-lock", ...
  Code code = Code::kUnimplemented;
  process::HostPid pid;
  int fd = -1;          // -1 if the obstacle is not a descriptor
  uint64_t inode = 0;   // inode of the open file
  std::string message;  // "process 4711 (node) holds an io_uring (fd 9), which CRIU cannot save"
  std::string hint;
};

// Returns obstacles in the tree's order. Ignores descriptors of a GPU driver: the driver closes
// them at its checkpoint, and a later check verifies that.
Result<std::vector<Obstacle>> FindObstacles(const process::ProcessTree& tree,
                                            const Options& options, const StdioPlan& stdio);

// Converts an obstacle to the error that Preflight returns.
Error ToError(Obstacle obstacle);

// Returns the first obstacle as an error, with the number of other obstacles.
Status Preflight(const process::ProcessTree& tree, const Options& options, const StdioPlan& stdio);

}  // namespace stasis::criu
