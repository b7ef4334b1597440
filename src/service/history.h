// What an operation adds to the checkpoints of its job once it has ended well.
#pragma once

#include "base/paths.h"
#include "coordinator/services.h"

namespace stasis::service {

// A suspend becomes a checkpoint; a dump is one since its commit, and gets its account. What cannot
// be written becomes a note of `result`: the operation is done all the same.
void RememberOperation(const Paths& paths, coordinator::OperationResult& result);

}  // namespace stasis::service
