// Every open descriptor of a tree with what CRIU would want to know about it, in one reading. For
// this room's own use: PlanStdio and FindObstacles look at the same list.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "process/proc.h"
#include "process/tree.h"

namespace stasis::criu {

struct ScannedFd {
  process::HostPid pid;
  std::string comm;
  int fd = -1;
  std::string target;  // as in /proc/PID/fd, e.g. "socket:[4711]"
  int flags = 0;       // of open(2)
  uint64_t position = 0;
  struct stat info {};             // of the open file itself
  std::vector<std::string> locks;  // the lines after "lock:" in fdinfo: locks held through it

  bool Readable() const;
  bool Writable() const;
  bool Deleted() const;      // the name it was opened by is gone
  std::string Path() const;  // target without " (deleted)"
};

// Zombies have none. A descriptor that is closed meanwhile is left out; a process that ends
// meanwhile too.
Result<std::vector<ScannedFd>> ScanFds(const process::ProcessTree& tree);

// A duplicate of another process's descriptor, in ours: the very same open file.
Result<UniqueFd> TakeFd(process::HostPid pid, int fd);

// "process 4711 (python3)".
std::string Describe(process::HostPid pid, const std::string& comm);

}  // namespace stasis::criu
