// A process and everything below it.
#pragma once

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

// Those of the session that `leader` leads, wherever they hang; none when it leads none.
Result<std::vector<Stat>> ReadSession(HostPid leader);

// The trees below several roots, from one look at all processes, so that asking for many costs no
// more than asking for one: to be shown, not to be acted on. Empty where a root is no more.
Result<std::vector<ProcessTree>> LookAtTrees(const std::vector<HostPid>& roots);

// Reads the tree below `root` (zombies included: they are part of what CRIU would dump). Two
// readings that agree are needed for an answer, at most `kMaxReadings` are made; kAborted when it
// never holds still.
inline constexpr int kMaxReadings = 20;
Result<ProcessTree> ReadTree(HostPid root);

}  // namespace stasis::process
