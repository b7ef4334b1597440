// CUDA IPC between the processes of a target: memory of one that others have open travels once,
// with its owner, and the others let go of it and take it up again. That needs all of them.
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

// Refuses (kUnimplemented) when one of those who take part shares memory with a process that does
// not, named by its pid, or has open what its owner has freed. Of a running target before anything
// is touched, and again when all gates are closed.
Status CheckIpcPeers(const std::vector<IpcMember>& members);

// The same for a process that is to be left to the driver, which carries none of it.
Status CheckSharesNothing(const IpcMember& member, const std::string& why_left);

}  // namespace stasis::gpu_state
