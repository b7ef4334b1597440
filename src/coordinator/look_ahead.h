// What suspend, resume and dump would refuse of a program's GPU memory, asked of its agents
// beforehand and of every process, not only up to the first.
#pragma once

#include <string>
#include <vector>

#include "coordinator/survey.h"

namespace stasis::coordinator {

struct Outlook {
  std::vector<Error> refusals;     // each names its process
  std::vector<std::string> notes;  // what works, but otherwise than one would hope; sentences
};

// Touches nothing. kAborted while an operation works on the target: its agents are not free then.
Result<Outlook> LookAhead(Services& services, const Survey& survey);

}  // namespace stasis::coordinator
