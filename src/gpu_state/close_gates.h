// Brings the programs of one operation to rest together.
//
// What a program has submitted may wait, on the GPU, for what another of them is yet to submit, as
// a collective of NCCL's does on each rank until all have launched it. Ranks run ahead of each
// other, so gates that shut at one moment find such work on most: it would never end. So those that
// are at rest while others are not let a few calls more through, and rest again, and so in turns,
// until all rest at the same time: then every collective has been launched by all or by none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent_client/client.h"
#include "base/deadline.h"
#include "base/result.h"

namespace stasis::gpu_state {

struct GateOwner {
  std::string who;  // "process 4711"
  agent_client::AgentClient* client;
};

// kDeadlineExceeded names one that did not come to rest, and why. After an error gates are shut, or
// closed, or open: whoever undoes opens them all. `together`: their work may wait for each other's;
// without it, or when an agent is too old for it, each has the time until `deadline` for itself.
Status CloseGates(const std::vector<GateOwner>& owners, bool together,
                  agent_client::AgentClient::Floor floor, const Deadline& deadline);

}  // namespace stasis::gpu_state
