#include "device/cuda/device_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "abi/driver_kinds.h"
#include "base/file.h"
#include "base/stat.h"
#include "device/hip/hip_driver.h"

namespace stasis::device::cuda {
namespace {

std::string_view BaseName(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 == 0
}

std::optional<int> Number(std::string_view text) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end == text.data() || number < 0) return std::nullopt;
  return number;
}

struct DeviceFile {
  std::optional<int> gpu;
  bool hip;
};
std::optional<DeviceFile> AsDeviceFile(std::string_view path) {
  const abi::DriverKind* kind = abi::KindOfDeviceFile(path);
  if (kind == nullptr) return std::nullopt;
  DeviceFile file{Number(path.substr(kind->device_files.size())), kind->is_hip};
  // The files of a software GPU have a number. Other paths with this prefix may be in an unrelated
  // directory of the same name.
  if (!file.gpu && !kind->is_hardware) return std::nullopt;
  return file;
}

}  // namespace

bool IsDriverLibrary(std::string_view path) {
  return (BaseName(path).starts_with("libcuda.so") && path.find("/stubs/") == path.npos) ||
         hip::IsRuntimeLibrary(path);
}

Result<Footprint> ReadFootprint(process::HostPid pid) {
  STASIS_ASSIGN(auto open_files, process::ReadOpenFiles(pid));
  STASIS_ASSIGN(auto mappings, process::ReadMappings(pid));
  Footprint found;
  std::vector<std::string> render_nodes;
  std::map<std::pair<int, uint64_t>, uint64_t> memory;  // bytes by GPU and inode
  for (const auto& file : open_files) {
    if (hip::IsRenderNode(file.target)) {
      render_nodes.push_back(fmt::format("fd {} -> {}", file.fd, file.target));
    }
    auto device = AsDeviceFile(file.target);
    if (!device) continue;
    found.hip |= device->hip;
    found.files.push_back(fmt::format("fd {} -> {}", file.fd, file.target));
    if (!device->gpu) continue;
    found.gpu_bytes[*device->gpu];
    struct stat st;
    std::string link = fmt::format("/proc/{}/fd/{}", pid.value, file.fd);
    if (StatWithoutSync(link, &st) && S_ISREG(st.st_mode)) {
      memory[{*device->gpu, st.st_ino}] = static_cast<uint64_t>(st.st_size);
    }
  }
  std::set<std::string> seen;
  for (const auto& mapping : mappings) {
    if (mapping.path.empty()) continue;
    if (found.library.empty() && IsDriverLibrary(mapping.path)) found.library = mapping.path;
    auto device = AsDeviceFile(mapping.path);
    if (!device) continue;
    found.hip |= device->hip;
    if (device->gpu && !mapping.path.starts_with("/dev/")) {
      uint64_t& bytes = memory[{*device->gpu, mapping.inode}];
      bytes = std::max(bytes, mapping.offset + mapping.end - mapping.begin);
    }
    if (device->gpu) found.gpu_bytes[*device->gpu];
    if (!seen.insert(mapping.path).second) continue;
    found.files.push_back(
        fmt::format("mapping {:x}-{:x} -> {}", mapping.begin, mapping.end, mapping.path));
  }
  if (found.hip) {
    found.files.insert(found.files.end(), render_nodes.begin(), render_nodes.end());
  }
  for (const auto& [gpu_and_inode, bytes] : memory) found.gpu_bytes[gpu_and_inode.first] += bytes;
  return found;
}

std::map<int, GpuUuid> NvidiaMinors(const std::string& proc_root) {
  std::map<int, GpuUuid> minors;
  auto folders = ListDir(proc_root);
  if (!folders) return minors;
  for (const std::string& folder : *folders) {
    auto text = ReadFile(proc_root + "/" + folder + "/information", 64 << 10);
    if (!text) continue;
    // "GPU UUID: \t GPU-…", "Device Minor: \t 0": the value is the last word of its line.
    auto value = [&](std::string_view key) -> std::string {
      size_t at = text->find(key);
      if (at == std::string::npos) return {};
      std::string line = text->substr(at, text->find('\n', at) - at);
      return line.substr(line.find_last_of(" \t") + 1);
    };
    auto minor = Number(value("Device Minor:"));
    std::string uuid = value("GPU UUID:");
    if (minor && !uuid.empty()) minors[*minor] = GpuUuid{uuid};
  }
  return minors;
}

}  // namespace stasis::device::cuda
