// Records successful operations among the checkpoints of their job.
#pragma once

#include "base/paths.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Adds a checkpoint for a suspend. A dump became one at its commit, and gets its account. A failure
// to write becomes a note of `result`, because the operation itself is done.
void RecordOperation(const Paths& paths, v1::OperationResult& result);

}  // namespace stasis::api
