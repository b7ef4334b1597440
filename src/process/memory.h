// Reads strings from the memory of another process. Such a read can block forever (userfaultfd,
// FUSE, a debugger), so a child process does it. The functions return kDeadlineExceeded if the
// child does not finish in time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::process {

// Long enough for memory that is merely slow (swapped out). Also the deadline of
// ReadCommandLine(pid).
inline constexpr std::chrono::seconds kMemoryAnswer{10};

// Return the arguments, and the initial environment as NAME=VALUE.
Result<std::vector<std::string>> ReadCommandLine(HostPid pid, const Deadline& deadline);
Result<std::vector<std::string>> ReadEnvironment(HostPid pid,
                                                 const Deadline& = Deadline::In(kMemoryAnswer));

}  // namespace stasis::process
