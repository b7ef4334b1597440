// What stands in the way of a dump, found before anything is touched: each by name, process and
// descriptor, with the way out. CRIU would find the same, but only when it has stopped the program,
// and in its own words.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "criu/options.h"
#include "criu/stdio.h"
#include "process/tree.h"

namespace stasis::criu {

struct Obstacle {
  std::string name;  // its id in docs/check.md: "io_uring", "tcp", "file-lock", ...
  Code code = Code::kUnimplemented;
  process::HostPid pid;
  int fd = -1;          // -1: it is no descriptor
  std::string message;  // "process 4711 (node) holds an io_uring (fd 9), which CRIU cannot save"
  std::string hint;
};

// In the tree's order. What a GPU's driver holds is not looked at: it goes when the driver
// checkpoints, and whether it has gone is checked then.
Result<std::vector<Obstacle>> FindObstacles(const process::ProcessTree& tree,
                                            const Options& options, const StdioPlan& stdio);

Error ToError(Obstacle obstacle);

// The first obstacle as an error, with the number of the others.
Status Preflight(const process::ProcessTree& tree, const Options& options, const StdioPlan& stdio);

}  // namespace stasis::criu
