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

// Returns the properties that make `here` no replacement for `recorded`, as texts.
std::vector<std::string> Differences(const Node& recorded, const Node& here) {
  std::vector<std::string> found;
  for (const Property& property : kProperties) {
    const auto was = recorded.find(property.name), is = here.find(property.name);
    if (was == recorded.end()) continue;
    const uint64_t now = is == here.end() ? 0 : is->second;
    if (property.rule == Rule::kSame ? now == was->second : now >= was->second) continue;
    found.push_back(fmt::format("{} is {}, and was {} when the image was made", property.name, now,
                                was->second));
  }
  return found;
}

// Assigns recorded GPUs to GPUs of this machine by augmenting paths. Finds an assignment of all of
// them if there is one, like the plugin, which tries all orders.
class Matching {
 public:
  Matching(const std::vector<Node>& recorded, const std::vector<Node>& here) : owner_(here.size()) {
    for (const Node& node : recorded) {
      fits_.emplace_back();
      for (const Node& other : here) fits_.back().push_back(Differences(node, other).empty());
    }
  }

  // Assigns another recorded GPU. Returns false if it cannot be assigned.
  bool Add(size_t recorded) {
    tried_.assign(owner_.size(), false);
    return Assign(recorded);
  }

 private:
  bool Assign(size_t recorded) {
    for (size_t i = 0; i < owner_.size(); ++i) {
      if (tried_[i] || !fits_[recorded][i]) continue;
      tried_[i] = true;
      if (owner_[i] && !Assign(*owner_[i])) continue;
      owner_[i] = recorded;
      return true;
    }
    return false;
  }

  std::vector<std::vector<bool>> fits_;       // by recorded GPU and GPU here
  std::vector<std::optional<size_t>> owner_;  // the recorded GPU of each GPU here
  std::vector<bool> tried_;
};

// Describes why a recorded GPU has no replacement, by the GPU that differs least.
std::string WhyNoReplacement(const Node& recorded, const std::vector<Node>& here) {
  std::vector<std::string> least;
  for (const Node& node : here) {
    std::vector<std::string> found = Differences(recorded, node);
    if (found.empty()) continue;  // it is needed for another recorded GPU
    if (least.empty() || found.size() < least.size()) least = std::move(found);
  }
  return least.empty() ? "too few of them are alike" : least.front();
}

// A control group can hide GPUs: their nodes exist and cannot be read.
bool IsHidden(const Error& error) {
  return error.code == Code::kNotFound || error.code == Code::kPermissionDenied;
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
    const auto id = ReadFile(node + "/gpu_id", kMaxPropertiesBytes);
    if (!id && IsHidden(id.error())) continue;
    if (!id) return Fail(id.error());
    if (id->empty() || id->front() == '0') continue;  // a processor
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
  if (recorded.empty()) return {};
  const std::vector<Node> wanted = ParseTopology(recorded);
  const std::vector<Node> found = ParseTopology(here);
  if (wanted.size() != found.size()) {
    return Fail(Code::kUnimplemented,
                fmt::format("the image was made with {} AMD GPUs, and this machine has {}",
                            wanted.size(), found.size()),
                "restore it on a machine with the same GPUs");
  }
  Matching matching(wanted, found);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (matching.Add(i)) continue;
    return Fail(Code::kUnimplemented,
                "the AMD GPUs of this machine differ from those of the image: " +
                    WhyNoReplacement(wanted[i], found),
                "restore it on a machine with the same GPUs, and firmware that is not older");
  }
  return {};
}

}  // namespace stasis::device::hip
