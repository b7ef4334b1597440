// Who takes part when GPU memory leaves by the shared path (shared_suspend.h), and who is left to
// the driver. Asks the agents, and touches nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu_state/agents.h"
#include "gpu_state/away.h"
#include "gpu_state/gpu_steps.h"
#include "gpu_state/services.h"
#include "gpu_state/shared_lots.h"
#include "gpu_state/unseen_sharing.h"

namespace stasis::gpu_state {

// One program, and its agent.
struct SharedMember {
  process::ProcessId id;
  uid_t owner = 0;
  std::optional<agent_client::AgentClient> client;  // while the operation speaks to it
  uint64_t range_bytes = 0;                         // when it was found
  agent_client::Export data;
  bool touched = false;  // its gate has been closed, or may have been
};

struct SharedMembers {
  std::vector<SharedMember> members;
  std::vector<Lot> lots;                    // by the agents' word
  uint64_t driver_bytes = 0;                // of the members, what only the driver could carry
  std::vector<std::string> left_to_driver;  // why others do not take part; sentences
  UnseenProcesses unseen;
};

// Of those processes that run. kUnimplemented when one can neither be carried by us nor be left to
// the driver.
Result<SharedMembers> FindSharedMembers(const Processes& processes, const AwayOptions& options);

// What those who take part share with others: kUnimplemented when one of these is none of them, as
// in ipc_peers.h.
Status CheckPeers(const std::vector<SharedMember>& members);

}  // namespace stasis::gpu_state
