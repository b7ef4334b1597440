// Checks whether this machine can checkpoint programs. findings.cc lists the checks and the meaning
// of each finding.
//
// No check blocks forever: a driver, disk or CRIU that does not answer in time is a finding.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "containers/inspect.h"
#include "device/device_control.h"
#include "health/findings.h"

namespace stasis::health {

struct MachineOptions {
  Paths paths;
  std::string criu;                   // path of CRIU; if empty, it is searched for
  std::string cuda_library;           // path of libcuda.so.1; if empty, the loader searches for it
  Result<std::string> agent_library;  // preloaded into programs
  // Also measure the disk's speed, start a mover on each GPU, and check that the agent answers.
  // This takes seconds, disk space and GPU memory.
  bool full = false;
  std::chrono::milliseconds patience{20000};  // time limit for any one check
  std::string root = {};                      // prefix for /proc and /sys; empty on a real machine
  containers::SetupPaths containers = {};     // the set-up of container runtimes
};

// Returns findings in the order of MachineKinds(). Takes about a second, and longer with `full`.
std::vector<Finding> CheckMachine(const MachineOptions& options, device::DeviceControl& device);

}  // namespace stasis::health
