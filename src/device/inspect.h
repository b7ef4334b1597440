// Detects from /proc how a program shares GPU memory with other processes. The driver reports such
// sharing too late: the checkpoint succeeds and the restore fails (NCCL with default settings,
// driver 580). Managed memory is invisible from outside, but the driver itself rejects it in time.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::device {

struct Finding {
  std::string what;         // "uses an active NCCL communicator"
  std::string evidence;     // "fd 41 is the socket @/tmp/nccl-socket-0-8f1c"
  std::string hint;         // for a program without an agent
  std::string agents_hint;  // for a program whose agent cannot be used
  bool fatal = false;       // the program would be lost by a checkpoint
};

// Ignores libraries that are merely loaded: every PyTorch process maps libnccl.
Result<std::vector<Finding>> Inspect(process::HostPid pid);

}  // namespace stasis::device
