#include "process/control_group.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "base/file.h"

namespace stasis::process {
namespace {

struct Mount {
  std::string root;  // the group visible at `point`
  std::string point;
  std::vector<std::string> controllers;  // for version 1
  bool unified = false;
};

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool Contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// "36 35 98:0 ROOT POINT options [optional...] - TYPE source super-options".
std::vector<Mount> ReadMounts(const std::string& root) {
  std::vector<Mount> mounts;
  auto text = ReadFile(root + "/proc/self/mountinfo");
  for (const std::string& line : Split(text.value_or(""), '\n')) {
    const std::vector<std::string> words = Split(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) continue;
    const std::string& type = dash[1];
    if (type != "cgroup" && type != "cgroup2") continue;
    mounts.push_back({words[3], words[4], Split(dash[3], ','), type == "cgroup2"});
  }
  return mounts;
}

// Maps `path`, as in /proc/PID/cgroup, to a path below the mount. Returns nothing if the mount does
// not show `path`.
std::optional<std::string> Below(const Mount& mount, const std::string& path) {
  if (path.find("/..") != std::string::npos || mount.root.find("/..") != std::string::npos) {
    return std::nullopt;  // outside of this cgroup namespace
  }
  std::string below = path == "/" ? "" : path;
  if (mount.root == "/") return below;
  if (below == mount.root) return "";
  if (!below.starts_with(mount.root + "/")) return std::nullopt;
  return below.substr(mount.root.size());
}

// A line of /proc/PID/cgroup: "4:cpu,cpuacct:/PATH", "1:name=systemd:/PATH", "0::/PATH".
struct Membership {
  std::string controllers;  // empty for version 2
  std::string path;
  bool operator==(const Membership&) const = default;
};

Result<std::vector<Membership>> ReadMemberships(HostPid pid, const std::string& root) {
  STASIS_ASSIGN(std::string text, ReadFile(root + "/proc/" + ToString(pid) + "/cgroup"));
  std::vector<Membership> memberships;
  for (const std::string& line : Split(text, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    memberships.push_back({line.substr(first + 1, second - first - 1), line.substr(second + 1)});
  }
  return memberships;
}

std::optional<ControlGroup> Find(const std::vector<Mount>& mounts, const Membership& membership,
                                 const std::string& root) {
  for (const Mount& mount : mounts) {
    const bool unified = membership.controllers.empty();
    if (mount.unified != unified) continue;
    if (!unified && !Contains(mount.controllers, Split(membership.controllers, ',').front())) {
      continue;
    }
    if (auto below = Below(mount, membership.path)) {
      return ControlGroup{root + mount.point, root + mount.point + *below};
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> ReadBytes(const std::string& path) {
  auto text = ReadFile(path, 4096);
  uint64_t bytes = 0;
  if (!text ||
      std::from_chars(text->data(), text->data() + text->size(), bytes).ec != std::errc{}) {
    return std::nullopt;  // includes "max"
  }
  return bytes;
}

// Returns how many bytes of file pages the kernel can reclaim. Excludes tmpfs pages.
uint64_t Reclaimable(const std::string& folder) {
  auto text = ReadFile(folder + "/memory.stat", 1 << 16);
  std::istringstream lines(text.value_or(""));
  uint64_t own = 0, total = 0, number = 0;
  for (std::string name; lines >> name >> number;) {
    if (name == "inactive_file" || name == "active_file") own += number;
    // In version 1, the usage of a group includes the groups below it, so the totals must include
    // them too.
    if (name == "total_inactive_file" || name == "total_active_file") total += number;
  }
  return std::max(own, total);
}

struct MemoryLimitRow {
  const char* limit;
  const char* usage;
};
constexpr MemoryLimitRow kMemoryLimits[] = {
    {"/memory.max", "/memory.current"},
    {"/memory.high", "/memory.current"},
    {"/memory.limit_in_bytes", "/memory.usage_in_bytes"},
    {"/memory.memsw.limit_in_bytes", "/memory.memsw.usage_in_bytes"},
};
constexpr uint64_t kReserve = 64u << 20;
constexpr uint64_t kUnlimited = 1ull << 60;  // version 1 reports the largest number of whole pages

}  // namespace

bool IsFrozen(HostPid pid, const std::string& root) {
  auto groups = ControlGroups(pid, root);
  if (!groups) return false;
  return std::any_of(groups->begin(), groups->end(), [](const ControlGroup& group) {
    auto state = ReadFile(group.folder + "/freezer.state", 64);     // version 1
    auto events = ReadFile(group.folder + "/cgroup.events", 4096);  // version 2
    return (state && !state->starts_with("THAWED")) ||
           (events && Contains(Split(*events, '\n'), "frozen 1"));
  });
}

uint64_t MemoryLeft::beyond_reserve() const {
  if (bytes == kNoLimit) return kNoLimit;
  return bytes - std::min(bytes, kReserve);
}

Result<std::vector<ControlGroup>> ControlGroups(HostPid pid, const std::string& root) {
  STASIS_ASSIGN(const std::vector<Membership> memberships, ReadMemberships(pid, root));
  const std::vector<Mount> mounts = ReadMounts(root);
  std::vector<ControlGroup> groups;
  for (const Membership& membership : memberships) {
    if (auto group = Find(mounts, membership, root)) groups.push_back(std::move(*group));
  }
  return groups;
}

Result<std::vector<std::string>> ControlGroupsToJoin(HostPid other, const std::string& root) {
  STASIS_ASSIGN(const std::vector<Membership> theirs, ReadMemberships(other, root));
  STASIS_ASSIGN(const std::vector<Membership> ours, ReadMemberships({::getpid()}, root));
  const std::vector<Mount> mounts = ReadMounts(root);
  std::vector<std::string> folders;
  for (const Membership& membership : theirs) {
    if (std::find(ours.begin(), ours.end(), membership) != ours.end()) continue;
    auto group = Find(mounts, membership, root);
    if (!group) {
      return Fail(Code::kFailedPrecondition,
                  "the control group " + membership.path + " (" +
                      (membership.controllers.empty() ? "version 2" : membership.controllers) +
                      ") of process " + ToString(other) + " is not visible here");
    }
    folders.push_back(std::move(group->folder));
  }
  return folders;
}

Status JoinControlGroup(const std::string& folder) {
  STASIS_ASSIGN(UniqueFd procs, Open(folder + "/cgroup.procs", O_WRONLY));
  return Annotate(WriteAll(procs.get(), "0"), "join the control group " + folder);
}

MemoryLeft MemoryLeftInControlGroups(HostPid pid, const std::string& root) {
  MemoryLeft left;
  auto groups = ControlGroups(pid, root);
  if (!groups) return left;
  for (const ControlGroup& group : *groups) {
    for (std::string folder = group.folder; folder.size() >= group.mount.size();
         folder.resize(folder.rfind('/'))) {
      for (const MemoryLimitRow& row : kMemoryLimits) {
        const auto limit = ReadBytes(folder + row.limit);
        const auto usage = ReadBytes(folder + row.usage);
        if (!limit || !usage || *limit >= kUnlimited) continue;
        const uint64_t held = *usage - std::min(*usage, Reclaimable(folder));
        const uint64_t here = *limit - std::min(*limit, held);
        if (here < left.bytes) left = {here, folder + row.limit};
      }
    }
  }
  return left;
}

}  // namespace stasis::process
