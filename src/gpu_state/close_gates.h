// Closes the gates of an operation's programs together.
//
// Work that a program has submitted may wait on the GPU for work that another program has not
// submitted yet: a collective of NCCL waits on each rank until all ranks have launched it. Ranks
// run ahead of each other. If all gates closed at the same moment, such work would usually remain
// and never end. Therefore programs that are quiescent while others are not may submit a few more
// calls, in turns, until all are quiescent at the same time. By then all ranks or none have
// launched each collective.
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

// Returns kDeadlineExceeded with the name of a program that did not become quiescent, and the
// reason. After an error a gate may be open, closed, or in between (kShut in
// agent_protocol/protocol.h: closed, but the program is not quiescent); the undo must open all of
// them. Set `together` if the work of one program may wait for that of another. Otherwise, or if an
// agent is too old for kCloseInSteps, each gate is closed independently.
Status CloseGates(const std::vector<GateOwner>& owners, bool together,
                  agent_client::AgentLink::Floor floor, const Deadline& deadline);

}  // namespace stasis::gpu_state
