// The agents inside a target's GPU processes, as they are before anything is touched: who can give
// its memory to the data plane, and who must be left to the driver, or left alone.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "agent_client/client.h"
#include "gpu_state/suspended.h"
#include "process/proc.h"

namespace stasis::gpu_state {

// The longest that an agent which is not at work may take to answer.
inline constexpr std::chrono::milliseconds kAgentAnswer{10000};

struct FoundAgent {
  process::ProcessId id;
  agent_client::AgentClient client;
  const agent_protocol::HelloReply& hello() const { return client.hello(); }
};

// Absent: there is none, or the program has not used a GPU yet. An agent that is there and does not
// answer is an error: without it, nobody knows what the driver may do with the process.
Result<std::optional<FoundAgent>> FindAgent(const process::ProcessId& id,
                                            std::chrono::milliseconds timeout = kAgentAnswer);

// Why the memory of a process cannot take the shared path although it has an agent; empty: it can.
std::string WhyNotShared(const agent_protocol::HelloReply& hello);

// A resume gives the program a descriptor for each piece of memory, which it keeps: so many it must
// be allowed. kResourceExhausted says how many. The agent counts once more before it closes its
// gate.
Status CheckDescriptorsFit(const FoundAgent& agent);

// Where the agent of a process says that its memory is: bits of agent_protocol::HeaderMemory, 0
// without an agent. Read from outside, so the answer does not wait for an agent whose program the
// driver has locked. Only agents of older versions, which may come with an image, have to be asked.
Result<uint32_t> MemoryOf(const process::ProcessId& id);

// What its agent shows from outside; nobody is connected to. false: where it shows nothing of it,
// as those of other versions.
bool SaysMemoryIsAway(process::HostPid pid);

// The record of a process that the driver has, and that is suspended all the same: its data is
// away, its context was kept. What its agent shows from outside counts too, since the process may
// have become another program by exec, or have its memory again; nobody is connected to.
std::optional<SuspendedProcess> LoadKeptContext(const Paths& paths, const process::ProcessId& id);

device::GpuUuid UuidOf(const agent_protocol::Uuid& uuid);

}  // namespace stasis::gpu_state
