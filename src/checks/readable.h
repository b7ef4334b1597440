// Checks that a program's memory and files can be read without hanging. Another program or a server
// may supply them (userfaultfd, FUSE, NFS), and a reader then blocks in the kernel until the
// supplier answers. Each function reads the memory or files in a child process that can be killed,
// before the operation reads them in its own process. Returns kDeadlineExceeded (Domain::kProcess),
// naming the process and the read that hangs, or kCancelled if the callback of CancelReadingWhen()
// returns true. Ignores other errors, because the later read reports them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::checks {

// Returns the deadline for these checks: --timeout, or 20 s if the user has set none (0).
inline Deadline ReadingDeadline(double timeout_s) {
  return Deadline::In(std::chrono::milliseconds(timeout_s > 0 ? int64_t(timeout_s * 1000) : 20000));
}

// Sets a callback that returns true if the user has cancelled; it is called when a signal arrives.
// Call this before the first survey.
void CancelReadingWhen(std::function<bool()> cancelled);
const std::function<bool()>& ReadingCancelled();

// For every operation: reads the list of mappings, and the agent's header and socket.
Status CheckAgentReadable(const std::vector<process::Stat>& members, const Deadline& deadline);

// For a dump: reads the command line, the environment, and the status of every open file.
Status CheckStateReadable(const std::vector<process::Stat>& members, const Deadline& deadline);

}  // namespace stasis::checks
