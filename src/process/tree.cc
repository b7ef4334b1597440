#include "process/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "base/file.h"
#include "process/search.h"

namespace stasis::process {

namespace {

// The maximum number of walks over the tree alone. If threads or processes of the tree end during
// each of them, all of /proc is searched instead.
constexpr int kMaxQuickWalks = 4;
constexpr int kMaxWalks = 21;

// Returns the children of a process, including zombies, from the files that list the children of
// each thread. Returns nothing if a thread ended meanwhile, because its children may then be
// missing: the kernel makes them children of another thread.
std::optional<std::vector<HostPid>> ReadChildren(HostPid pid) {
  const auto threads = ReadThreads(pid);
  if (!threads) return std::nullopt;
  std::vector<HostPid> children;
  for (const pid_t thread : *threads) {
    auto text = ReadFile(fmt::format("/proc/{}/task/{}/children", pid.value, thread));
    if (!text) return std::nullopt;
    const char* at = text->c_str();
    for (char* end = nullptr;; at = end) {
      const long child = std::strtol(at, &end, 10);
      if (end == at) break;
      children.push_back({static_cast<pid_t>(child)});
    }
  }
  const auto after = ReadThreads(pid);
  if (!after) return std::nullopt;
  const std::set<pid_t> there(after->begin(), after->end());
  const bool all_there = std::all_of(threads->begin(), threads->end(),
                                     [&](pid_t thread) { return there.contains(thread); });
  return all_there ? std::optional(std::move(children)) : std::nullopt;
}

// Walks from the root to its descendants. Returns nothing if one of them ended meanwhile.
std::optional<ProcessTree> WalkDown(Stat root) {
  ProcessTree tree;
  std::set<HostPid> known = {root.id.pid};
  tree.members.push_back(std::move(root));
  for (size_t i = 0; i < tree.members.size(); ++i) {
    const HostPid pid = tree.members[i].id.pid;
    const auto children = ReadChildren(pid);
    if (!children) return std::nullopt;
    for (const HostPid child : *children) {
      auto stat = ReadStat(child);
      // A child is listed twice if its thread ended meanwhile.
      if (!stat || stat->parent != pid || !known.insert(child).second) return std::nullopt;
      tree.members.push_back(std::move(*stat));
    }
  }
  return tree;
}

}  // namespace

bool ProcessTree::Contains(HostPid pid) const {
  return std::any_of(members.begin(), members.end(),
                     [&](const Stat& member) { return member.id.pid == pid; });
}

std::vector<HostPid> ProcessTree::pids() const {
  std::vector<HostPid> pids;
  for (const Stat& member : members) pids.push_back(member.id.pid);
  return pids;
}

bool ProcessTree::SameMembers(const ProcessTree& other) const {
  std::set<ProcessId> a, b;
  for (const Stat& member : members) a.insert(member.id);
  for (const Stat& member : other.members) b.insert(member.id);
  return a == b;
}

Result<Snapshot> Snapshot::Take() {
  STASIS_ASSIGN(auto pids, ListProcesses());
  Snapshot snapshot;
  for (HostPid pid : pids) {
    auto stat = ReadStat(pid);
    if (stat) snapshot.by_parent_.emplace(stat->parent, std::move(*stat));
  }
  return snapshot;
}

Result<ProcessTree> Snapshot::Tree(HostPid root) const {
  ProcessTree tree;
  STASIS_ASSIGN(Stat root_stat, ReadStat(root));
  tree.members.push_back(std::move(root_stat));
  for (size_t i = 0; i < tree.members.size(); ++i) {
    auto [begin, end] = by_parent_.equal_range(tree.members[i].id.pid);
    for (auto it = begin; it != end; ++it) tree.members.push_back(it->second);
  }
  return tree;
}

std::vector<Stat> Snapshot::Session(HostPid leader) const {
  std::vector<Stat> members;
  for (const auto& [parent, stat] : by_parent_) {
    if (stat.session == leader.value) members.push_back(stat);
  }
  return members;
}

namespace {

// Searches all of /proc until two walks agree.
Result<ProcessTree> SearchTree(HostPid root) {
  std::optional<ProcessTree> last;
  for (int walk = 0; walk < kMaxWalks; ++walk) {
    STASIS_ASSIGN(const Snapshot snapshot, Snapshot::Take());
    STASIS_ASSIGN(ProcessTree tree, snapshot.Tree(root));
    if (last && tree.SameMembers(*last)) return tree;
    last = std::move(tree);
  }
  return Fail(Code::kAborted, Domain::kProcess, 0,
              "the process tree below " + ToString(root) + " keeps changing",
              "try again when it has finished starting or ending processes");
}

}  // namespace

// A walk can miss a child only if another child or a thread ends at the same moment. In that case
// either the walk itself notices the end, or a member is missing from the next walk. Two walks that
// agree are therefore considered complete.
Result<ProcessTree> ReadTree(HostPid root) {
  std::optional<ProcessTree> last;
  for (int walk = 0; walk < kMaxQuickWalks; ++walk) {
    STASIS_ASSIGN(Stat stat, ReadStat(root));
    auto tree = WalkDown(std::move(stat));
    if (tree && last && tree->SameMembers(*last)) return std::move(*tree);
    last = std::move(tree);
  }
  return SearchTree(root);
}

}  // namespace stasis::process
