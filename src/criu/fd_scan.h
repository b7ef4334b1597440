// Scans all open descriptors of a tree for the properties that matter to CRIU. PlanStdio and
// FindObstacles use it. Internal to this folder.
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
  std::string target;  // link target in /proc/PID/fd, for example "socket:[4711]"
  int flags = 0;       // as for open(2)
  uint64_t position = 0;
  struct stat info {};             // of the open file
  std::vector<std::string> locks;  // file locks: the texts after "lock:" in fdinfo

  bool Readable() const;
  bool Writable() const;
  bool Deleted() const;      // true if the name by which the file was opened was deleted
  std::string Path() const;  // target without " (deleted)"
};

// Omits zombies, and descriptors and processes that vanish during the scan.
Result<std::vector<ScannedFd>> ScanFds(const process::ProcessTree& tree);

// Duplicates a descriptor of another process; the result shares the open file description.
Result<UniqueFd> TakeFd(process::HostPid pid, int fd);

// Returns "process 4711 (python3)".
std::string Describe(process::HostPid pid, const std::string& comm);

}  // namespace stasis::criu
