// Finds the agents inside a target's GPU processes, and reads their information about GPU memory.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent_client/agent_link.h"
#include "base/deadline.h"
#include "gpu_state/suspended.h"
#include "process/proc.h"

namespace stasis::gpu_state {

// Time limit for the answer of an idle agent.
inline constexpr std::chrono::milliseconds kAgentAnswer{10000};

// Returns null if the process has no agent, has not used a GPU yet, or has ended. Returns an error
// if the agent does not answer, because without it nothing is known about memory that the driver
// must not checkpoint.
Result<std::unique_ptr<agent_client::AgentLink>> FindAgent(
    agent_client::Agents& agents, const process::ProcessId& id,
    std::chrono::milliseconds timeout = kAgentAnswer);

// Returns why a process with an agent cannot take the shared path, or an empty string if it can.
std::string WhyNotShared(const agent_protocol::HelloReply& hello);

// Returns kResourceExhausted if the program's limit on descriptors is too low for a resume, after
// which the program has one more descriptor for each piece of its memory. The agent checks this
// again before it closes its gate.
Status CheckDescriptorsFit(const process::ProcessId& id, const agent_protocol::HelloReply& hello);

// Returns bits of agent_protocol::HeaderMemory; 0 without an agent. Reads the agent's header, so it
// works while the driver has locked the program. Connects only to an agent of an older version,
// which may have been restored from an image.
Result<uint32_t> MemoryOf(agent_client::Agents& agents, const process::ProcessId& id);

// Returns true if the agent's header says that the memory is away. Returns false for agents of
// other versions.
bool SaysMemoryIsAway(agent_client::Agents& agents, process::HostPid pid);

// Returns the record of a process that is suspended with its context kept. The driver reports such
// a process as running. Also reads the agent's header, because the process may have executed
// another program or have its memory back. Does not connect to the agent.
std::optional<SuspendedProcess> LoadKeptContext(
    const Paths& paths, const process::ProcessId& id,
    agent_client::Agents& agents = agent_client::AgentsInProcesses());

device::GpuUuid UuidOf(const agent_protocol::Uuid& uuid);

// Returns the time until the deadline, at most `most`.
std::chrono::milliseconds TimeLeft(const Deadline& deadline, std::chrono::milliseconds most);

}  // namespace stasis::gpu_state
