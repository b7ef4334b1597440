// What /proc proves about how a program shares its GPU memory with others. The driver tells it only
// when it is too late: a checkpoint succeeds, and the restore then does not (NCCL with its
// defaults, driver 580). Managed memory cannot be seen from outside at all; there the driver
// refuses in time.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::device {

struct Finding {
  std::string what;         // "uses an active NCCL communicator"
  std::string evidence;     // "fd 41 is the socket @/tmp/nccl-socket-0-8f1c"
  std::string hint;         // without an agent
  std::string agents_hint;  // with an agent that may not be relied on
  bool fatal = false;       // a checkpoint would lose the program
};

// Libraries that are only loaded are no evidence: every PyTorch process maps libnccl.
Result<std::vector<Finding>> Inspect(process::HostPid pid);

}  // namespace stasis::device
