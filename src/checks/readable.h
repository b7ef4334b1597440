// Checks that a program's memory and files can be read without hanging. Another program or a server
// may supply them (userfaultfd, FUSE, NFS), and a reader then blocks in the kernel until that
// answers. Each function reads in a child process what is read again later. kDeadlineExceeded
// (Domain::kProcess) names the process and what hangs; kCancelled if the callback of
// CancelReadingWhen returns true. Other errors are ignored here and found by the later read.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checks {

// The time limit for an operation with this --timeout (0: none).
inline Deadline ReadingDeadline(double timeout_s) {
  return Deadline::In(std::chrono::milliseconds(timeout_s > 0 ? int64_t(timeout_s * 1000) : 20000));
}

// Sets a callback that returns true if the user has cancelled; it is called when a signal arrives.
// Call this before the first survey.
void CancelReadingWhen(std::function<bool()> cancelled);
const std::function<bool()>& ReadingCancelled();

// For every operation: the list of mappings, the agent's header and its socket.
Status CheckAgentReadable(const std::vector<process::Stat>& members, const Deadline& deadline);

// For a dump: the command line, the environment, and the state of every open file.
Status CheckStateReadable(const std::vector<process::Stat>& members, const Deadline& deadline);

}  // namespace stasis::checks
