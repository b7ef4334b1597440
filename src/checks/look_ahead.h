// Finds all reasons for which suspend, resume and dump would refuse a program's GPU memory. Asks
// the agents of all processes and does not stop at the first refusal.
#pragma once

#include <string>
#include <vector>

#include "checks/survey.h"
#include "gpu_state/services.h"

namespace stasis::checks {

struct Outlook {
  std::vector<Error> refusals;              // each names its process
  Status sharing;                           // result of gpu_state::CheckSharingSeen()
  std::vector<std::string> left_to_driver;  // why the driver, which is slower, saves some memory
  uint64_t carried_bytes = 0;               // bytes that movers would carry, or have in arenas
  uint64_t driver_bytes = 0;  // bytes that the driver would save in the programs' own memory
  // Host memory that a suspend or dump would free first: unused arenas.
  uint64_t unused_bytes = 0;
};

// Does not change the target. Returns kAborted while another operation works on the target.
Result<Outlook> LookAhead(gpu_state::Services& services, const Survey& survey);

}  // namespace stasis::checks
