#include "containers/identify.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"

namespace stasis::containers {
namespace {

constexpr size_t kIdLength = 64, kShortId = 12;
constexpr size_t kMaxStateBytes = 4u << 20;

// The name that a runtime gives to the control group of a container: the prefix and the container's
// id. With systemd, ".scope" follows.
struct GroupName {
  const char* prefix;
  const char* runtime;
  std::optional<Runtime> called;
  const char* containerd_namespace;
};
constexpr GroupName kGroupNames[] = {
    {"libpod-", "podman", Runtime::kPodman, ""},
    {"cri-containerd-", "containerd", Runtime::kContainerd, "k8s.io"},
    {"crio-", "CRI-O", std::nullopt, ""},
    {"docker-", "Docker", std::nullopt, ""},
};

bool IsId(const std::string& text) {
  return text.size() == kIdLength &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Identity Named(const GroupName& row, const std::string& id) {
  const std::string shortened = id.substr(0, kShortId);
  Identity identity{fmt::format("{} container {}", row.runtime, shortened), {}, {}};
  if (row.called) {
    // containerd accepts only complete ids.
    const bool whole = *row.called == Runtime::kContainerd;
    identity.reference = Reference{*row.called, whole ? id : shortened, row.containerd_namespace};
  }
  return identity;
}

// Parses one component of a control group's path.
std::optional<Identity> IdentifyComponent(std::string component, const std::string& parent) {
  if (component.ends_with(".scope")) component.resize(component.size() - 6);
  for (const GroupName& row : kGroupNames) {
    if (!component.starts_with(row.prefix)) continue;
    const std::string id = component.substr(std::string_view(row.prefix).size());
    if (IsId(id)) return Named(row, id);
  }
  // With the cgroup driver cgroupfs the path is /docker/ID or /kubepods/…/podUID/ID.
  if (!IsId(component)) return std::nullopt;
  if (parent == "docker") return Named(kGroupNames[3], component);
  if (parent.starts_with("pod")) return Named(kGroupNames[1], component);
  return std::nullopt;
}

// Searches a state folder of runc, which has a file for each container: FOLDER/ID/state.json.
std::optional<std::string> FindInState(const std::string& folder, process::HostPid init) {
  auto ids = ListDir(folder);
  if (!ids) return std::nullopt;
  for (const std::string& id : *ids) {
    auto text = ReadFile(folder + "/" + id + "/state.json", kMaxStateBytes);
    if (!text) continue;
    const auto state = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!state.is_object()) continue;
    auto pid = state.find("init_process_pid");
    if (pid != state.end() && pid->is_number_integer() && pid->get<int64_t>() == init.value) {
      return id;
    }
  }
  return std::nullopt;
}

std::optional<Identity> IdentifyByState(process::HostPid init, const std::string& root) {
  const std::string containerd = root + "/run/containerd/runc";
  for (const std::string& name : ListDir(containerd).value_or(std::vector<std::string>())) {
    if (auto id = FindInState(containerd + "/" + name, init)) {
      return Identity{fmt::format("containerd container {}", *id),
                      Reference{Runtime::kContainerd, *id, name},
                      {}};
    }
  }
  if (auto id = FindInState(root + "/run/runc", init)) {
    // podman runs containers with runc, and gives them their complete ids.
    if (IsId(*id)) return Named(kGroupNames[0], *id);
    return Identity{fmt::format("runc container {}", *id), Reference{Runtime::kRunc, *id, {}}, {}};
  }
  return std::nullopt;
}

// Returns the ancestor of `pid` that has pid 1 in the pid namespace of `pid`. A process that was
// started in a container by `exec` has no such ancestor.
process::HostPid InitAbove(process::HostPid pid, const std::string& root) {
  for (int steps = 0; steps < 1000; ++steps) {
    auto text = ReadFile(root + "/proc/" + process::ToString(pid) + "/status", 64u << 10);
    if (!text) return {};
    std::istringstream lines(*text);
    pid_t parent = 0, inner = 0;
    size_t depth = 0;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line.substr(std::min(line.size(), line.find('\t'))));
      if (line.starts_with("PPid:")) words >> parent;
      if (!line.starts_with("NSpid:")) continue;
      for (pid_t number; words >> number; ++depth) inner = number;
    }
    if (depth > 1 && inner == 1) return pid;
    if (depth <= 1 || parent <= 0) return {};
    pid = {parent};
  }
  return {};
}

}  // namespace

std::optional<Identity> IdentifyByControlGroup(const std::string& cgroup_text) {
  std::istringstream lines(cgroup_text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    std::istringstream parts(line.substr(second + 1));
    std::string parent;
    for (std::string part; std::getline(parts, part, '/');) {
      if (auto identity = IdentifyComponent(part, parent)) return identity;
      parent = part;
    }
  }
  return std::nullopt;
}

std::optional<Identity> IdentifyContainer(process::HostPid pid, const std::string& root) {
  const std::string folder = root + "/proc/" + process::ToString(pid);
  if (auto groups = ReadFile(folder + "/cgroup", 64u << 10)) {
    if (auto identity = IdentifyByControlGroup(*groups)) return identity;
  }
  const process::HostPid init = InitAbove(pid, root);
  if (init.value == 0) return std::nullopt;
  return IdentifyByState(init, root);
}

std::string CommandInstead(const Identity& identity, const std::string& verb) {
  if (!identity.reference) {
    return "checkpoint it with its container runtime (docs/containers.md); `stasis suspend` and "
           "`stasis resume` work with the process id";
  }
  return fmt::format(
      "use `stasis {} {}`; `stasis suspend` and `stasis resume` work with the process id", verb,
      identity.reference->ToString());
}

}  // namespace stasis::containers
