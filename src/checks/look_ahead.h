// What suspend, resume and dump would refuse of a program's GPU memory, asked of its agents
// beforehand and of every process, not only up to the first.
#pragma once

#include <string>
#include <vector>

#include "checks/survey.h"
#include "gpu_state/services.h"

namespace stasis::checks {

struct Outlook {
  std::vector<Error> refusals;              // each names its process
  Status sharing;                           // of all of them: unseen_sharing.h
  std::vector<std::string> left_to_driver;  // what works, but otherwise than one would hope
  uint64_t carried_bytes = 0;               // what the data plane would take, or has
  uint64_t driver_bytes = 0;  // what the driver would put into the programs' own memory
  // Host memory that a suspend or dump would give back first: arenas that nobody needs.
  uint64_t unused_bytes = 0;
};

// Touches nothing. kAborted while an operation works on the target: its agents are not free then.
Result<Outlook> LookAhead(gpu_state::Services& services, const Survey& survey);

}  // namespace stasis::checks
