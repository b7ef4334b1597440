// Whether a program can be looked at without hanging. Its memory, and files that it has open, may
// be supplied by another program or by a server (userfaultfd, FUSE, NFS): a reader then waits in
// the kernel as long as they like. Each function reads in a child process what is read later.
// kDeadlineExceeded (Domain::kProcess) names the process and what hangs; kCancelled when
// CancelReadingWhen says so. Other errors are left to whoever needs what was read.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checks {

// How long that may take, for an operation with this --timeout (0: none).
inline Deadline ReadingDeadline(double timeout_s) {
  return Deadline::In(std::chrono::milliseconds(timeout_s > 0 ? int64_t(timeout_s * 1000) : 20000));
}

// What this process's user has cancelled, asked when a signal arrives. Set before the first survey.
void CancelReadingWhen(std::function<bool()> cancelled);
const std::function<bool()>& ReadingCancelled();

// For every operation: the list of mappings, the agent's header and its door.
Status CheckAgentReadable(const std::vector<process::Stat>& members, const Deadline& deadline);

// For a dump: the command line, the environment, and the state of every open file.
Status CheckStateReadable(const std::vector<process::Stat>& members, const Deadline& deadline);

}  // namespace stasis::checks
