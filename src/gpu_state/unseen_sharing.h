// Finds processes of a target that could share GPU memory with each other unnoticed by agents:
// processes without an agent, or with an agent that does not see all calls of its program. The
// driver's checkpoint removes shared memory (CUDA IPC, imported handles), and its restore does not
// bring it back, so the program would be lost.
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

// Adds the process to `unseen` if it could share GPU memory unnoticed. `hello` is the answer of a
// running process's agent, or null. If the GPU state of the process is away, only the agent's
// header is read.
void NoteUnseen(agent_client::Agents& agents, const plan::RecordedProcess& process,
                const agent_protocol::HelloReply* hello, UnseenProcesses& unseen);

// Returns a sentence about the processes in `unseen`, or nothing if there are fewer than two.
std::optional<std::string> UnseenSharing(const UnseenProcesses& unseen);

// Returns kUnimplemented, with the names of the processes, if `unseen` has two or more and at least
// one of them still has its state on the GPU. Ranks of NCCL are allowed if NCCL is configured to
// share no GPU memory (docs/nccl.md).
Status CheckSharingSeen(const UnseenProcesses& unseen);

}  // namespace stasis::gpu_state
