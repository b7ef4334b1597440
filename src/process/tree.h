// A process and everything below it.
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
  // The same processes (pid and start time), in any state.
  bool SameMembers(const ProcessTree& other) const;
};

// All processes, as one walk over /proc found them: to ask for several trees costs no more than to
// ask for one.
class Snapshot {
 public:
  // To be shown, not to be acted on: what was started or ended meanwhile may be missing.
  static Result<Snapshot> Take();

  // The last of two walks that agree on the tree below `root`. At most `kMaxWalks` are made;
  // kAborted when it never holds still, kNotFound when there is no such process.
  static constexpr int kMaxWalks = 21;
  static Result<Snapshot> Settled(HostPid root);

  // The tree below `root`, zombies included: they are part of what CRIU would dump. kNotFound when
  // it is no more.
  Result<ProcessTree> Tree(HostPid root) const;

  // Those of the session that `leader` leads, wherever they hang; none when it leads none.
  std::vector<Stat> Session(HostPid leader) const;

 private:
  std::multimap<HostPid, Stat> by_parent_;
};

// The tree below `root` when it holds still; errors of Snapshot::Settled.
Result<ProcessTree> ReadTree(HostPid root);

}  // namespace stasis::process
