// Checks whether this machine can checkpoint programs. findings.cc lists the checks and the meaning
// of each finding.
//
// No check blocks forever: a driver, disk or CRIU that does not answer is a finding.
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
  std::string criu;                   // path of CRIU; empty: search for it
  std::string cuda_library;           // path of libcuda.so.1; empty: the loader's search
  Result<std::string> agent_library;  // preloaded into programs
  // Also run checks that take seconds or use a GPU and the disk: disk speed, and a mover on each
  // GPU.
  bool full = false;
  std::chrono::milliseconds patience{20000};  // time limit for any one check
  std::string root = {};                      // prefix for /proc and /sys; empty: this machine's
  containers::SetupPaths containers = {};     // the set-up of container runtimes
};

// Returns findings in the order of MachineKinds(). Takes about a second, and longer with `full`.
std::vector<Finding> CheckMachine(const MachineOptions& options, device::DeviceControl& device);

}  // namespace stasis::health
