// A restore whose CRIU another program has started (hold.h). The plan of restore uses it like a
// shim and a CRIU that it started itself.
#pragma once

#include <memory>

#include "criu/plugin_link.h"
#include "gpu_state/services.h"
#include "operations/restore_host.h"
#include "process/proc.h"

namespace stasis::operations {

// Returns the hosts of a restore whose CRIU, at the other end of `link`, waits in the plugin's
// init(). Both arguments must outlive the result and its hosts. Not thread-safe.
std::shared_ptr<RestoreHosts> MakeHeldHosts(gpu_state::Services& services, criu::PluginLink& link);

// Sends SIGKILL to a restored program and does not wait for its end. Does nothing if `root` is 0 or
// has ended. Safe to call from any thread.
void KillRestored(const process::ProcessId& root);

}  // namespace stasis::operations
