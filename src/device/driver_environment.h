// Builds the environment of processes that load the GPU driver.
#pragma once

#include <string>
#include <vector>

namespace stasis::device {

// Returns ScrubbedEnvironment() with absolute folders in LD_LIBRARY_PATH, and with
// CUDA_DEVICE_ORDER, so that the driver numbers the GPUs like nvidia-smi and not by speed.
std::vector<std::string> DriverEnvironment();

// Returns a short hash of everything that decides which driver a helper of this process finds:
// `library` (if empty, the loader searches), environment variables, the root directory, and the
// pid, mount, user, network and IPC namespaces. Two processes with the same hash see the same pids.
std::string DriverIdentity(const std::string& library);

}  // namespace stasis::device
