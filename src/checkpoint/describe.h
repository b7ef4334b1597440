// Describes a stopped program for the manifest of its image.
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
  std::string job;                        // empty for a process without a job
  gpu_state::Processes device_processes;  // their memory and state before the dump
  bool leave_running = false;
  criu::Options criu;
  criu::StdioPlan stdio;
  std::string criu_version;
  std::string gpu_topology;  // see store::Software
};

// Returns a manifest without files, ranges and phases. Returns kDeadlineExceeded if the program's
// memory or a mapped file cannot be read in time.
Result<store::Manifest> DescribeProgram(gpu_state::Services& services, const DumpedProgram& program,
                                        const Deadline& deadline);

}  // namespace stasis::checkpoint
