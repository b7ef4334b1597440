// The environment of processes that load the GPU driver.
#pragma once

#include <string>
#include <vector>

namespace stasis::device {

// Returns ScrubbedEnvironment() with the order in which the driver numbers the GPUs: like
// nvidia-smi, instead of by speed.
std::vector<std::string> DriverEnvironment();

// Returns a short hash of everything that decides which driver a helper of this process finds:
// `library` (empty: the loader's search), the variables, and the pid and mount namespaces. Pids
// mean the same to two processes with the same hash.
std::string DriverIdentity(const std::string& library);

}  // namespace stasis::device
