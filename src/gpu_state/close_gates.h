// Closes the gates of an operation's programs together.
//
// Work that a program has submitted may wait on the GPU for work that another program has not
// submitted yet: a collective of NCCL waits on each rank until all ranks have launched it. Ranks
// run ahead of each other, so gates that shut at one moment usually find such work, and it would
// never end. Therefore programs that are quiesced while others are not get to submit a few more
// calls, in turns, until all are quiesced at the same time. By then all ranks or none have launched
// each collective.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent_client/agent_link.h"
#include "base/deadline.h"
#include "base/result.h"

namespace stasis::gpu_state {

struct GateOwner {
  std::string who;  // "process 4711"
  agent_client::AgentLink* agent;
};

// kDeadlineExceeded names a program that was not quiesced, and why. After an error gates may be
// shut, closed or open; the undo must open all of them. `together` means that their work may wait
// for each other's. Otherwise, or if an agent is too old for steps, each program has the time until
// `deadline` for itself.
Status CloseGates(const std::vector<GateOwner>& owners, bool together,
                  agent_client::AgentLink::Floor floor, const Deadline& deadline);

}  // namespace stasis::gpu_state
