// The undo of a suspend on the shared path.
#pragma once

#include <vector>

#include "base/result.h"
#include "gpu_state/services.h"
#include "gpu_state/shared_members.h"

namespace stasis::gpu_state {

// Maps the memory of every program again, with its current content, and lets the program run. The
// driver's state must have been restored before. Members that have ended are skipped. Returns the
// first error, which names its process; may be called repeatedly.
Status ReturnMemory(Services& services, std::vector<SharedMember>& members);

}  // namespace stasis::gpu_state
