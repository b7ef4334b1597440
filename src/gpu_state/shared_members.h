// Decides which processes take the shared path (shared_suspend.h) and which are left to the driver.
// Asks the agents and touches nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu_state/agents.h"
#include "gpu_state/away.h"
#include "gpu_state/gpu_shards.h"
#include "gpu_state/gpu_steps.h"
#include "gpu_state/services.h"
#include "gpu_state/unseen_sharing.h"

namespace stasis::gpu_state {

// One program with its agent.
struct SharedMember {
  process::ProcessId id;
  uid_t owner = 0;
  std::unique_ptr<agent_client::AgentLink> agent;  // while connected
  agent_client::Export data;
  bool touched = false;  // its gate may have been closed
};

struct SharedMembers {
  std::vector<SharedMember> members;
  std::vector<GpuShard> shards;             // estimated by the agents
  uint64_t driver_bytes = 0;                // memory of the members that only the driver can carry
  std::vector<std::string> left_to_driver;  // sentences: why other processes are not members
  UnseenProcesses unseen;
};

// Considers the running processes. Returns kUnimplemented if a process can take neither path.
Result<SharedMembers> FindSharedMembers(agent_client::Agents& agents, const Processes& processes,
                                        const AwayOptions& options);

// Applies CheckIpcPeers to the members.
Status CheckPeers(const std::vector<SharedMember>& members);

}  // namespace stasis::gpu_state
