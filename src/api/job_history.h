// Records successful operations among the checkpoints of their job.
#pragma once

#include "base/paths.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Adds a checkpoint for a suspend. A dump has added its checkpoint at its commit, which gets the
// account here. A failed write becomes a note of `result`, because the operation itself succeeded.
void RecordOperation(const Paths& paths, v1::OperationResult& result);

}  // namespace stasis::api
