// Processes of a target of which nobody sees whether they share GPU memory with each other: without
// an agent, or with one that does not see all of its program's calls. What they share (CUDA IPC,
// imported handles) the driver's checkpoint takes away and its restore does not bring back, so that
// the program would be lost at the resume, and from the image.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent_protocol/protocol.h"
#include "plan/journal.h"

namespace stasis::gpu_state {

struct UnseenProcess {
  process::ProcessId id;
  std::string missed;  // what its agent does not see; empty without an agent
  bool away = false;   // its GPU state is, so there is nothing to take of it
};
using UnseenProcesses = std::vector<UnseenProcess>;

// Of one that runs, `hello` is its agent's word, or null. Of one that is away only the agent's
// header is looked for.
void NoteUnseen(const plan::RecordedProcess& process, const agent_protocol::HelloReply* hello,
                UnseenProcesses& unseen);

// What is to be said of a target with these; a sentence.
std::optional<std::string> UnseenSharing(const UnseenProcesses& unseen);

// kUnimplemented names them, when there are two or more of which one is to be taken from the GPU,
// but for ranks of NCCL in the setting in which NCCL shares none (docs/nccl.md).
Status CheckSharingSeen(const UnseenProcesses& unseen);

}  // namespace stasis::gpu_state
