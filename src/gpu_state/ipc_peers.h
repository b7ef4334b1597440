// CUDA IPC between the processes of a target: shared memory moves once, with its owner, and the
// other processes close it and open it again. That requires all of them to take part.
#pragma once

#include <vector>

#include "agent_protocol/protocol.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::gpu_state {

struct IpcMember {
  process::ProcessId id;
  const agent_protocol::HelloReply* hello;
};

// Returns kUnimplemented if a member shares memory with a process that is not a member (the message
// names its pid), or has memory open that its owner has freed. Called before anything is touched,
// and again when all gates are closed.
Status CheckIpcPeers(const std::vector<IpcMember>& members);

// Returns kUnimplemented if a process that is left to the driver shares memory, because the driver
// cannot carry shared memory. `why_left` becomes a part of the message.
Status CheckSharesNothing(const IpcMember& member, const std::string& why_left);

}  // namespace stasis::gpu_state
