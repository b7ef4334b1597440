// What a manifest says about a program, gathered while it is stopped.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/result.h"
#include "criu/options.h"
#include "criu/stdio.h"
#include "gpu_state/gpu_steps.h"
#include "gpu_state/services.h"
#include "process/tree.h"
#include "store/manifest.h"

namespace stasis::checkpoint {

struct DumpedProgram {
  process::ProcessTree tree;
  std::string job;                        // empty for a bare process
  gpu_state::Processes device_processes;  // with their memory and state before the dump
  bool leave_running = false;
  criu::Options criu;
  criu::StdioPlan stdio;
  std::string criu_version;
};

// Everything but files, ranges and phases. kDeadlineExceeded when the program's memory or a file
// that it has mapped does not answer.
Result<store::Manifest> DescribeProgram(gpu_state::Services& services, const DumpedProgram& program,
                                        const Deadline& deadline);

}  // namespace stasis::checkpoint
