// Finds processes of a target that could share GPU memory with each other without any agent seeing
// it: those without an agent, or with an agent that does not see all calls of its program. The
// driver's checkpoint takes shared memory (CUDA IPC, imported handles) away and its restore does
// not bring it back, so the program would be lost.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent_client/agent_link.h"
#include "plan/journal.h"

namespace stasis::gpu_state {

struct UnseenProcess {
  process::ProcessId id;
  std::string missed;  // what its agent does not see; empty without an agent
  bool away = false;   // its GPU state is away already
};
using UnseenProcesses = std::vector<UnseenProcess>;

// Adds the process to `unseen` if it is one. `hello` is the answer of a running process's agent, or
// null. For a process that is away only the agent's header is read.
void NoteUnseen(agent_client::Agents& agents, const plan::RecordedProcess& process,
                const agent_protocol::HelloReply* hello, UnseenProcesses& unseen);

// Returns a sentence that describes them, or nothing if there are fewer than two.
std::optional<std::string> UnseenSharing(const UnseenProcesses& unseen);

// kUnimplemented names them, if there are two or more and at least one of them is still on the GPU.
// Ranks of NCCL in the configuration in which NCCL shares no GPU memory are allowed (docs/nccl.md).
Status CheckSharingSeen(const UnseenProcesses& unseen);

}  // namespace stasis::gpu_state
