#include "process/tree.h"

#include <algorithm>
#include <map>
#include <set>

#include "process/search.h"

namespace stasis::process {
namespace {

using ByParent = std::multimap<HostPid, Stat>;

Result<ByParent> ReadAll() {
  STASIS_ASSIGN(auto pids, ListProcesses());
  ByParent by_parent;
  for (HostPid pid : pids) {
    auto stat = ReadStat(pid);
    if (stat) by_parent.emplace(stat->parent, std::move(*stat));
  }
  return by_parent;
}

ProcessTree TreeBelow(Stat root_stat, const ByParent& by_parent) {
  ProcessTree tree;
  tree.members.push_back(std::move(root_stat));
  for (size_t i = 0; i < tree.members.size(); ++i) {
    auto [begin, end] = by_parent.equal_range(tree.members[i].id.pid);
    for (auto it = begin; it != end; ++it) tree.members.push_back(it->second);
  }
  return tree;
}

Result<ProcessTree> ReadOnce(HostPid root) {
  STASIS_ASSIGN(Stat root_stat, ReadStat(root));
  STASIS_ASSIGN(ByParent by_parent, ReadAll());
  return TreeBelow(std::move(root_stat), by_parent);
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

Result<std::vector<Stat>> ReadSession(HostPid leader) {
  STASIS_ASSIGN(auto pids, ListProcesses());
  std::vector<Stat> members;
  for (HostPid pid : pids) {
    auto stat = ReadStat(pid);
    if (stat && stat->session == leader.value) members.push_back(std::move(*stat));
  }
  return members;
}

Result<std::vector<ProcessTree>> LookAtTrees(const std::vector<HostPid>& roots) {
  STASIS_ASSIGN(ByParent by_parent, ReadAll());
  std::vector<ProcessTree> trees;
  for (HostPid root : roots) {
    auto stat = ReadStat(root);
    trees.push_back(stat ? TreeBelow(std::move(*stat), by_parent) : ProcessTree());
  }
  return trees;
}

Result<ProcessTree> ReadTree(HostPid root) {
  STASIS_ASSIGN(ProcessTree last, ReadOnce(root));
  for (int i = 0; i < kMaxReadings; ++i) {
    STASIS_ASSIGN(ProcessTree now, ReadOnce(root));
    if (now.SameMembers(last)) return now;
    last = std::move(now);
  }
  return Fail(Code::kAborted, Domain::kProcess, 0,
              "the process tree below " + ToString(root) + " keeps changing",
              "try again when it has finished starting or ending processes");
}

}  // namespace stasis::process
