#include "conformance/machine.h"

#include <sys/utsname.h>

#include <algorithm>

#include "base/file.h"

namespace stasis::conformance {
namespace {

constexpr size_t kMaxFileBytes = 64 << 10;
constexpr size_t kMaxGpus = 16;  // GPUs that are described

std::string Trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// Returns an empty string if the file cannot be read.
std::string Contents(const std::string& path) {
  auto text = ReadFile(path, kMaxFileBytes);
  return text ? Trimmed(std::move(*text)) : std::string();
}

std::vector<std::string> Names(const std::string& folder) {
  auto names = ListDir(folder);
  return names ? std::move(*names) : std::vector<std::string>();
}

// Returns the text after `key` in the first line that begins with it.
std::string ValueOf(const std::string& text, const std::string& key) {
  const size_t at = text.starts_with(key) ? 0 : text.find("\n" + key);
  if (at == std::string::npos) return {};
  const size_t begin = at + key.size() + (at == 0 && text.starts_with(key) ? 0 : 1);
  return Trimmed(text.substr(begin, text.find('\n', begin) - begin));
}

std::string Processors(const std::string& root) {
  const std::string text = Contents(root + "/proc/cpuinfo");
  std::string model = ValueOf(text, "model name");
  model.erase(0, model.find_first_not_of("\t :"));
  size_t count = 0;
  for (size_t at = 0; (at = text.find("processor", at)) != std::string::npos; ++at) ++count;
  return std::to_string(count) + (model.empty() ? "" : ", " + model);
}

// "name value" lines of the files in a folder.
std::string Table(const std::string& folder, const std::vector<std::string>& names) {
  std::string table;
  for (const std::string& name : names) {
    const std::string value = Contents(folder + "/" + name);
    if (!value.empty()) table += name + " " + value + "\n";
  }
  return table;
}

// Each GPU of the topology that the kernel driver publishes: CRIU's plugin compares these.
void AddTopology(const std::string& root, Facts& facts) {
  const std::string nodes = root + "/sys/class/kfd/kfd/topology/nodes";
  size_t count = 0;
  for (const std::string& name : Names(nodes)) {
    const std::string id = Contents(nodes + "/" + name + "/gpu_id");
    if (id.empty() || id == "0" || ++count > kMaxGpus) continue;
    facts.emplace_back("topology node " + name, "gpu_id " + id + "\nname " +
                                                    Contents(nodes + "/" + name + "/name") + "\n" +
                                                    Contents(nodes + "/" + name + "/properties"));
  }
}

void AddPciDevices(const std::string& root, Facts& facts) {
  const std::string folder = root + "/sys/bus/pci/devices";
  constexpr char kAmd[] = "0x1002";
  size_t count = 0;
  for (const std::string& name : Names(folder)) {
    const std::string device = folder + "/" + name;
    if (Contents(device + "/vendor") != kAmd || !PathExists(device + "/drm")) continue;
    if (++count > kMaxGpus) break;
    std::string text =
        Table(device, {"device", "revision", "vbios_version", "mem_info_vram_total",
                       "current_compute_partition", "current_memory_partition", "numa_node"});
    text += Table(device + "/fw_version", Names(device + "/fw_version"));
    facts.emplace_back("PCI device " + name, text);
  }
}

}  // namespace

Facts DescribeMachine(const std::string& root) {
  Facts facts;
  auto add = [&](const char* name, std::string text) {
    if (!text.empty()) facts.emplace_back(name, std::move(text));
  };
  std::string os = ValueOf(Contents(root + "/etc/os-release"), "PRETTY_NAME=");
  os.erase(std::remove(os.begin(), os.end(), '"'), os.end());
  add("operating system", os);
  add("kernel", Contents(root + "/proc/version"));
  utsname name{};
  if (::uname(&name) == 0) add("architecture", name.machine);
  add("processors", Processors(root));
  std::string memory = ValueOf(Contents(root + "/proc/meminfo"), "MemTotal:");
  memory.erase(0, memory.find_first_not_of(' '));
  add("memory", memory);
  const std::string module = root + "/sys/module/amdgpu";
  if (PathExists(module)) {
    const std::string version = Contents(module + "/version");
    add("amdgpu kernel driver", version.empty() ? "the kernel's own" : version);
  }
  add("ROCm", Contents(root + "/opt/rocm/.info/version"));
  std::string nodes;
  for (const std::string& path : RenderNodes(root)) nodes += (nodes.empty() ? "" : " ") + path;
  add("render nodes", nodes);
  AddTopology(root, facts);
  AddPciDevices(root, facts);
  return facts;
}

std::vector<std::string> RenderNodes(const std::string& root) {
  std::vector<std::string> paths;
  for (const std::string& name : Names(root + "/dev/dri")) {
    if (name.starts_with("renderD")) paths.push_back("/dev/dri/" + name);
  }
  return paths;
}

}  // namespace stasis::conformance
