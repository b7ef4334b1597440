// Describes the limits on processes and threads. The kernel counts both as tasks.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stasis {

// Returns the error of a fork or thread creation that failed; `what` names it. For EAGAIN the code
// is kResourceExhausted and the message names the limits of this process.
Error TaskError(int errno_value, std::string what);

// The hint of such an error.
inline constexpr char kRaiseTaskLimit[] =
    "Raise the limit on processes (`ulimit -u`, or pids.max of the control group)";

// If not null: the text that a program prints when such a limit makes it exit. The text tells the
// user which changes may remain unfinished.
inline std::atomic<const char*> left_at_task_limit{nullptr};

// Describes the limits of this process as one clause, such as "the limits on processes and threads
// are 4096 for this user (ulimit -u), 512 for control group /a/b (pids.max; now 512)". Returns an
// empty string if there are none. `proc_cgroup` is the content of /proc/self/cgroup, `root` the
// cgroup mount point.
std::string DescribeTaskLimits(std::string_view proc_cgroup, const std::string& root);

}  // namespace stasis
