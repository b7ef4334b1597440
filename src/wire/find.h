// Where the agent of a process keeps its header.
#pragma once

#include "base/result.h"
#include "process/proc.h"
#include "wire/protocol.h"

namespace stasis::wire {

// The header of the agent inside the process, read and checked; kNotFound when there is none, or
// none that has a door, kUnimplemented when it speaks another version.
Result<AgentHeader> ReadAgentHeader(process::HostPid pid);

}  // namespace stasis::wire
