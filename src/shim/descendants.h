// Kills all processes below a subreaper.
#pragma once

#include <sys/types.h>

namespace stasis::shim {

// Kills and reaps all descendants of the calling process until only shared servers
// (process/shared_server.h) are left. The caller must be a subreaper with one thread. Kills `criu`
// (0: none) first, because it may stop processes or create new ones.
void KillDescendants(pid_t criu);

// Returns true if every child of the calling process is a shared server.
bool OnlySharedServersLeft();

}  // namespace stasis::shim
