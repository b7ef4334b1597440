#include "process/tree.h"

#include <algorithm>
#include <optional>
#include <set>

#include "process/search.h"

namespace stasis::process {

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

Result<Snapshot> Snapshot::Settled(HostPid root) {
  std::optional<ProcessTree> last;
  for (int walk = 0; walk < kMaxWalks; ++walk) {
    STASIS_ASSIGN(Snapshot snapshot, Take());
    STASIS_ASSIGN(ProcessTree tree, snapshot.Tree(root));
    if (last && tree.SameMembers(*last)) return snapshot;
    last = std::move(tree);
  }
  return Fail(Code::kAborted, Domain::kProcess, 0,
              "the process tree below " + ToString(root) + " keeps changing",
              "try again when it has finished starting or ending processes");
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

Result<ProcessTree> ReadTree(HostPid root) {
  STASIS_ASSIGN(Snapshot snapshot, Snapshot::Settled(root));
  return snapshot.Tree(root);
}

}  // namespace stasis::process
