#include "device/driver_environment.h"

#include "base/subprocess.h"

namespace stasis::device {

std::vector<std::string> DriverEnvironment() {
  std::vector<std::string> environment = ScrubbedEnvironment();
  environment.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  return environment;
}

}  // namespace stasis::device
