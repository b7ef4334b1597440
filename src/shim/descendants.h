// Ending everything below a subreaper.
#pragma once

#include <sys/types.h>

namespace stasis::shim {

// Kills and reaps all descendants of the calling process, which must be a subreaper of one thread,
// until it has no child left. `criu` (0: none) goes first: it may hold others stopped, or be making
// new ones.
void KillDescendants(pid_t criu);

}  // namespace stasis::shim
