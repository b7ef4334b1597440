// Is this machine able? What is looked at, and what each finding means, is in findings.cc.
//
// Nothing here waits for ever: a driver, a disk or a CRIU that does not answer is a finding.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "device/device_control.h"
#include "health/findings.h"

namespace stasis::health {

struct MachineOptions {
  Paths paths;
  std::string criu;                   // the one to use; empty: it is looked for
  std::string cuda_library;           // libcuda.so.1; empty: the loader's
  Result<std::string> agent_library;  // what programs are started under
  // Also what takes seconds, or uses a GPU and the disk: the disk's speed, a mover on each GPU.
  bool full = false;
  std::chrono::milliseconds patience{20000};  // for any one question
  std::string root = {};                      // before /proc and /sys; empty: the machine's own
};

// In the order of MachineKinds(). Takes a second or so, with `full` some more.
std::vector<Finding> CheckMachine(const MachineOptions& options, device::DeviceControl& device);

}  // namespace stasis::health
