// Killing everything below a subreaper.
#pragma once

#include <sys/types.h>

namespace stasis::shim {

// Kills and reaps all descendants of the calling process, a single-threaded subreaper, until only
// shared servers (process/shared_server.h) are left. `criu` (0: none) is killed first, because it
// may stop others or create new ones.
void KillDescendants(pid_t criu);

// Returns true if every child of the calling process is such a server.
bool OnlySharedServersLeft();

}  // namespace stasis::shim
