// The queues of a HIP process. CRIU's plugin for AMD GPUs stops them when it saves /dev/kfd, and
// continues them when it has saved the last device file. If the dump fails in between, they stay
// stopped.
//
// Functions without state. Safe to call from any thread that holds no lock.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::device::hip {

// Continues the queues of the process if they are stopped. Requires that no other process traces
// it, and CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. Succeeds for a process that has ended or has no
// queues.
Status ContinueQueues(process::HostPid pid, const Deadline& deadline);

// The kernel driver; other values are for tests.
struct Kfd {
  std::string device = "/dev/kfd";
  // Continues the queues of the process that opened the device. Returns 0 or an errno; EINVAL if
  // they are not stopped. Called by a child process, which traces that process.
  int (*unpause)(int fd) = nullptr;  // nullptr: the ioctl
};
// Returns true if the process has the device open.
Result<bool> ContinueQueuesOf(process::HostPid pid, const Kfd& kfd, const Deadline& deadline);

}  // namespace stasis::device::hip
