// Searches all processes in /proc.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Any of the processes may have ended when the function returns.
Result<std::vector<HostPid>> ListProcesses();

// Returns the process and its ancestors, up to but not including pid 1. The list is empty if the
// process does not exist.
std::vector<Stat> ReadLineage(HostPid pid);

// Returns the processes that have one of `targets` open, given as link targets of /proc/PID/fd
// ("socket:[4711]"). An inherited file has several holders. Skips processes that may not be
// inspected.
Result<std::vector<Stat>> FindHolders(const std::set<std::string>& targets);

}  // namespace stasis::process
