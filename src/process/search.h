// All processes that /proc shows, looked through.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Any of them may have ended by the time that it is asked about.
Result<std::vector<HostPid>> ListProcesses();

// Those that have one of `targets` open, as their links in /proc/PID/fd call it ("socket:[4711]");
// a file that is inherited has several. Processes that we may not look into are not seen.
Result<std::vector<Stat>> FindHolders(const std::set<std::string>& targets);

}  // namespace stasis::process
