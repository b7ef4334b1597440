#include "device/driver_environment.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "abi/driver_kinds.h"
#include "base/file.h"
#include "base/hex.h"
#include "base/sha256.h"
#include "base/subprocess.h"

namespace stasis::device {
namespace {

constexpr std::string_view kLibraryPath = "LD_LIBRARY_PATH=";

// Returns whether an environment variable affects which driver and which GPUs a helper finds.
bool SelectsDriver(std::string_view entry) {
  return entry.starts_with(kLibraryPath) || abi::IsDriverVariable(entry);
}

// Makes the folders of a library path absolute, because a resident helper has another working
// directory. Drops empty ones, which mean the working directory.
std::string WithAbsoluteFolders(std::string_view folders) {
  std::error_code error;
  const auto here = std::filesystem::current_path(error);
  std::string absolute;
  while (!folders.empty()) {
    const size_t end = std::min(folders.find_first_of(":;"), folders.size());
    const std::string_view folder = folders.substr(0, end);
    folders.remove_prefix(std::min(end + 1, folders.size()));
    if (folder.empty()) continue;
    if (!absolute.empty()) absolute += ':';
    absolute += folder.front() == '/' || error ? std::string(folder) : (here / folder).string();
  }
  return absolute;
}

}  // namespace

std::vector<std::string> DriverEnvironment() {
  std::vector<std::string> environment = ScrubbedEnvironment();
  for (std::string& entry : environment) {
    if (!entry.starts_with(kLibraryPath)) continue;
    entry = std::string(kLibraryPath) +
            WithAbsoluteFolders(std::string_view(entry).substr(kLibraryPath.size()));
  }
  environment.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");
  return environment;
}

std::string DriverIdentity(const std::string& library) {
  std::vector<std::string> parts;
  for (std::string& entry : DriverEnvironment()) {
    if (SelectsDriver(entry)) parts.push_back(std::move(entry));
  }
  std::sort(parts.begin(), parts.end());
  parts.push_back(library);
  for (const char* name : {"pid", "mnt", "user", "net", "ipc"}) {
    parts.push_back(ReadLink(std::string("/proc/self/ns/") + name).value_or(""));
  }
  struct stat root;
  if (::stat("/", &root) == 0) parts.push_back(fmt::format("{}:{}", root.st_dev, root.st_ino));
  std::string all;
  for (const std::string& part : parts) all += part + '\0';
  return HexOfBytes(View(Sha256(all))).substr(0, 16);
}

}  // namespace stasis::device
