// Builds the environment of processes that load the GPU driver.
#pragma once

#include <string>
#include <vector>

namespace stasis::device {

// Returns ScrubbedEnvironment() with absolute folders in LD_LIBRARY_PATH, and with the order in
// which the driver numbers the GPUs: like nvidia-smi, instead of by speed.
std::vector<std::string> DriverEnvironment();

// Returns a short hash of everything that decides which driver a helper of this process finds:
// `library` (if empty, the loader searches), the variables, the root directory, and the pid, mount,
// user, network and IPC namespaces. Two processes with the same hash see the same pids.
std::string DriverIdentity(const std::string& library);

}  // namespace stasis::device
