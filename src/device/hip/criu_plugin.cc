#include "device/hip/criu_plugin.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "abi/driver_kinds.h"
#include "base/file.h"
#include "base/install_layout.h"

namespace stasis::device::hip {
namespace {

// AMDKFD_IOC_GET_VERSION of linux/kfd_ioctl.h.
struct KfdVersion {
  uint32_t major;
  uint32_t minor;
};
constexpr unsigned long kGetKfdVersion = _IOR('K', 0x01, KfdVersion);
// The first version with AMDKFD_IOC_CRIU_OP (Linux 5.18).
constexpr uint32_t kKfdMajor = 1, kLeastKfdMinor = 8;

constexpr size_t kMaxPropertiesBytes = 64 << 10;
constexpr size_t kMaxNodes = 256;

// The properties that the plugin compares, with its rules.
enum class Rule : uint8_t { kSame, kNotLess };
struct Property {
  std::string_view name;
  Rule rule;
};
constexpr Property kProperties[] = {
    {"gfx_target_version", Rule::kSame},
    {"vendor_id", Rule::kSame},
    {"device_id", Rule::kSame},
    {"simd_count", Rule::kSame},
    {"mem_banks_count", Rule::kSame},
    {"io_links_count", Rule::kSame},
    {"max_waves_per_simd", Rule::kSame},
    {"lds_size_in_kb", Rule::kSame},
    {"wave_front_size", Rule::kSame},
    {"array_count", Rule::kSame},
    {"simd_arrays_per_engine", Rule::kSame},
    {"cu_per_simd_array", Rule::kSame},
    {"simd_per_cu", Rule::kSame},
    {"max_slots_scratch_cu", Rule::kSame},
    {"num_sdma_engines", Rule::kSame},
    {"num_sdma_xgmi_engines", Rule::kSame},
    {"num_sdma_queues_per_engine", Rule::kSame},
    {"num_cp_queues", Rule::kSame},
    {"capability", Rule::kSame},
    {"num_gws", Rule::kNotLess},
    {"caches_count", Rule::kNotLess},
    {"fw_version", Rule::kNotLess},
    {"sdma_fw_version", Rule::kNotLess},
};

using Node = std::map<std::string, uint64_t, std::less<>>;

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

// Parses words "nameSEPvalue", where SEP separates a name from its value and `between` separates
// the words. Ignores unknown names and values that are not numbers.
Node ParseNode(std::string_view text, char between, char separator) {
  Node node;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(between));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const size_t at = word.find(separator);
    if (at == std::string_view::npos) continue;
    const std::string_view name = word.substr(0, at);
    const bool known = std::any_of(std::begin(kProperties), std::end(kProperties),
                                   [&](const Property& property) { return property.name == name; });
    const auto value = Number(word.substr(at + 1));
    if (known && value) node.emplace(name, *value);
  }
  return node;
}

std::vector<Node> ParseTopology(std::string_view text) {
  std::vector<Node> nodes;
  while (!text.empty() && nodes.size() < kMaxNodes) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    nodes.push_back(ParseNode(line, ' ', '='));
  }
  return nodes;
}

// Returns the first property that makes `here` no replacement for `recorded`, as text; empty if
// there is none.
std::string Difference(const Node& recorded, const Node& here) {
  for (const Property& property : kProperties) {
    const auto was = recorded.find(property.name), is = here.find(property.name);
    if (was == recorded.end()) continue;
    const uint64_t now = is == here.end() ? 0 : is->second;
    if (property.rule == Rule::kSame ? now == was->second : now >= was->second) continue;
    return fmt::format("{} is {}, and was {} when the image was made", property.name, now,
                       was->second);
  }
  return {};
}

}  // namespace

Result<std::string> FindCriuPlugin(std::string_view driver_kind) {
  const abi::DriverKind* kind = abi::FindDriverKind(driver_kind);
  if (kind == nullptr || !kind->is_hip) {
    return Fail(Code::kInternal, fmt::format("driver {} has no plugin of CRIU", driver_kind));
  }
  STASIS_ASSIGN(const std::string root, InstallRoot());
  const std::string_view beside_kernel = kind->kernel.substr(0, kind->kernel.rfind('/'));
  std::string folder = root + "/" +
                       (kind->is_hardware ? std::string("lib/stasis/criu-amdgpu")
                                          : std::string(beside_kernel) + "/criu");
  auto files = ListDir(folder);
  const bool found = files && std::any_of(files->begin(), files->end(),
                                          [](const auto& name) { return name.ends_with(".so"); });
  if (found) return folder;
  return Fail(Code::kUnimplemented,
              "this installation has no plugin of CRIU for AMD GPUs (" + folder + ")",
              "build it where libdrm for AMD is installed (libdrm-dev; docs/amd.md), or use the "
              "tarball or package");
}

Status CheckKernelDriver(std::string_view driver_kind, const std::string& kfd) {
  if (!abi::IsHardware(driver_kind)) return {};
  auto device = Open(kfd, O_RDWR);
  if (!device && device.error().code == Code::kNotFound) {
    return Fail(Code::kUnimplemented, "there is no " + kfd + " on this machine",
                "load the kernel driver amdgpu (`modprobe amdgpu`); in a container, add the device "
                "/dev/kfd");
  }
  if (!device) {
    device.error().hint = "run it as root, or as a member of the group that owns " + kfd;
    return Fail(std::move(device).error());
  }
  KfdVersion version{};
  if (::ioctl(device->get(), kGetKfdVersion, &version) != 0) {
    return FailErrno(errno, "ask " + kfd + " for its version");
  }
  if (version.major == kKfdMajor && version.minor >= kLeastKfdMinor) return {};
  return Fail(
      Code::kUnimplemented,
      fmt::format("the kernel driver amdgpu cannot save GPU state: its interface is version "
                  "{}.{}, and {}.{} is needed",
                  version.major, version.minor, kKfdMajor, kLeastKfdMinor),
      "use Linux 5.18 or newer, or a newer amdgpu-dkms");
}

Result<std::string> ReadTopology(std::string_view driver_kind, const std::string& folder) {
  if (!abi::IsHardware(driver_kind)) return std::string();
  STASIS_ASSIGN(const auto names, ListDir(folder));
  std::string text;
  for (const std::string& name : names) {
    const std::string node = folder + "/" + name;
    STASIS_ASSIGN(const std::string id, ReadFile(node + "/gpu_id", kMaxPropertiesBytes));
    if (id.empty() || id.front() == '0') continue;  // a processor
    STASIS_ASSIGN(const std::string properties,
                  ReadFile(node + "/properties", kMaxPropertiesBytes));
    std::string line;
    for (const auto& [property, value] : ParseNode(properties, '\n', ' ')) {
      line += fmt::format("{}{}={}", line.empty() ? "" : " ", property, value);
    }
    text += line + "\n";
  }
  return text;
}

Status CompareTopology(std::string_view recorded, std::string_view here) {
  const std::vector<Node> wanted = ParseTopology(recorded);
  std::vector<Node> left = ParseTopology(here);
  if (wanted.size() != left.size()) {
    return Fail(Code::kUnimplemented,
                fmt::format("the image was made with {} AMD GPUs, and this machine has {}",
                            wanted.size(), left.size()),
                "restore it on a machine with the same GPUs");
  }
  for (const Node& node : wanted) {
    const auto found = std::find_if(left.begin(), left.end(), [&](const Node& other) {
      return Difference(node, other).empty();
    });
    if (found == left.end()) {
      return Fail(Code::kUnimplemented,
                  "the AMD GPUs of this machine differ from those of the image: " +
                      Difference(node, left.front()),
                  "restore it on a machine with the same GPUs, and firmware that is not older");
    }
    left.erase(found);
  }
  return {};
}

}  // namespace stasis::device::hip
