// Control groups of a process (cgroup versions 1 and 2): their mount points, whether they are
// frozen, and the memory left under their limits. The kernel charges memory to the group of the
// process that touches it first.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// One group as a directory, for one hierarchy that the calling process sees mounted.
struct ControlGroup {
  std::string mount;   // mount point of the hierarchy
  std::string folder;  // the group's directory, `mount` or below
  bool operator==(const ControlGroup&) const = default;
};

// Returns the groups of a process. Omits a group outside of the visible mounts, because it has no
// directory. `root` is a prefix for all paths, for tests.
Result<std::vector<ControlGroup>> ControlGroups(HostPid pid, const std::string& root = "");

// Returns the directories of those groups of `other` that the calling process is not in. Returns
// kFailedPrecondition if one of them is not visible here and so cannot be joined.
Result<std::vector<std::string>> ControlGroupsToJoin(HostPid other, const std::string& root = "");
// Moves the calling process with all its threads into the group whose directory is `folder`.
Status JoinControlGroup(const std::string& folder);

// Returns true if a group of the process, or a group above one of them, is frozen. Container
// runtimes pause a container by freezing its group. Threads of a frozen process run no code, not
// even under ptrace.
bool IsFrozen(HostPid pid, const std::string& root = "");

struct MemoryLeft {
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  uint64_t bytes = kNoLimit;  // memory that can still be charged
  std::string limit_file;     // the file with the tightest limit, for messages

  // Returns how many bytes may be allocated, less a reserve for Stasis itself. At the limit the
  // kernel kills a process of the group, possibly the user's program.
  uint64_t beyond_reserve() const;
};

// Returns the least memory that is left under a limit of the process's groups or of a group above
// them. The limits are memory.max and memory.high (version 2), and memory.limit_in_bytes and
// memory.memsw.limit_in_bytes (version 1). Reclaimable file pages count as free. The result is
// kNoLimit if the groups cannot be read.
MemoryLeft MemoryLeftInControlGroups(HostPid pid, const std::string& root = "");

}  // namespace stasis::process
