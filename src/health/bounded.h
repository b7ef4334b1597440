// A question to a file system that may never answer (a network file system without its server, a
// disk that is dying).
#pragma once

#include <functional>

#include "base/deadline.h"
#include "base/result.h"

namespace stasis::health {

// Runs `question` in a child process and returns its answer; kDeadlineExceeded when there is none
// by the deadline. The child is killed then, and left: one that hangs in the kernel ends when that
// lets it go. What the question changes of this process's memory is lost.
Result<std::string> AskBounded(const std::function<Result<std::string>()>& question,
                               const Deadline& deadline);

}  // namespace stasis::health
