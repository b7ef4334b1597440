// A dump whose CRIU another program has started (hold.h). The plan of dump uses it like a CRIU that
// it started itself.
#pragma once

#include <memory>

#include "criu/criu.h"
#include "criu/plugin_link.h"
#include "gpu_state/services.h"

namespace stasis::operations {

// Returns the CRIU at the other end of `link`, which waits in its first PAUSE_DEVICES. Both
// arguments must outlive the result and its sessions. Not thread-safe.
std::shared_ptr<criu::Criu> MakeHeldDumpCriu(gpu_state::Services& services, criu::PluginLink& link);

}  // namespace stasis::operations
