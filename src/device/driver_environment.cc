#include "device/driver_environment.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/file.h"
#include "base/hex.h"
#include "base/sha256.h"
#include "base/subprocess.h"

namespace stasis::device {
namespace {

// Variables that decide which driver and which GPUs a helper finds.
constexpr std::string_view kDriverVariables[] = {"LD_LIBRARY_PATH=", "SOFTGPU_"};

bool SelectsDriver(std::string_view entry) {
  return std::any_of(std::begin(kDriverVariables), std::end(kDriverVariables),
                     [&](std::string_view prefix) { return entry.starts_with(prefix); });
}

}  // namespace

std::vector<std::string> DriverEnvironment() {
  std::vector<std::string> environment = ScrubbedEnvironment();
  environment.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  return environment;
}

std::string DriverIdentity(const std::string& library) {
  std::vector<std::string> parts;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (SelectsDriver(*entry)) parts.emplace_back(*entry);
  }
  std::sort(parts.begin(), parts.end());
  parts.push_back(library);
  for (const char* name : {"pid", "mnt"}) {
    parts.push_back(ReadLink(std::string("/proc/self/ns/") + name).value_or(""));
  }
  std::string all;
  for (const std::string& part : parts) all += part + '\0';
  return HexOfBytes(View(Sha256(all))).substr(0, 16);
}

}  // namespace stasis::device
