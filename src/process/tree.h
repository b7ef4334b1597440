// A process and all its descendants.
#pragma once

#include <map>
#include <vector>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

struct ProcessTree {
  std::vector<Stat> members;  // the root first, parents before their children

  const Stat& root() const { return members.front(); }
  bool Contains(HostPid pid) const;
  std::vector<HostPid> pids() const;
  // Compares pid and start time; ignores states.
  bool SameMembers(const ProcessTree& other) const;
};

// All processes that one walk over /proc has found. Several trees can be read from one snapshot.
class Snapshot {
 public:
  // Walks once. Processes that start or end during the walk may be missing, so use this for display
  // only.
  static Result<Snapshot> Take();

  // Returns the tree below `root`, including zombies, which CRIU would dump too. Returns kNotFound
  // if `root` does not exist.
  Result<ProcessTree> Tree(HostPid root) const;

  // Returns the processes of the session that `leader` leads, whatever their parents. The list is
  // empty if there is no such session.
  std::vector<Stat> Session(HostPid leader) const;

 private:
  std::multimap<HostPid, Stat> by_parent_;
};

// Returns the tree below `root` once it is stable. Reads only processes of the tree if the kernel
// lists the children of processes (CONFIG_PROC_CHILDREN), and all of /proc otherwise or if members
// keep ending. Returns kNotFound if `root` does not exist, kAborted if the tree keeps changing.
Result<ProcessTree> ReadTree(HostPid root);

}  // namespace stasis::process
