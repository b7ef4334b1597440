// The environment of processes that load the GPU driver.
#pragma once

#include <string>
#include <vector>

namespace stasis::device {

// Returns ScrubbedEnvironment() with the order in which the driver numbers the GPUs: like
// nvidia-smi, instead of by speed.
std::vector<std::string> DriverEnvironment();

}  // namespace stasis::device
