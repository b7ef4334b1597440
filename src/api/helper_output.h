// Copies the stderr of a worker's helpers (for example of the driver's library) to the log.
#pragma once

#include "base/fd.h"
#include "base/result.h"

namespace stasis::api {

// Replaces stderr of this process, and so of each helper that it starts, with a pipe that a
// background thread reads. Keeps at most kMaxHelperLines lines of kMaxHelperLineBytes each.
inline constexpr int kMaxHelperLines = 200;
inline constexpr size_t kMaxHelperLineBytes = 1024;
Status CaptureHelperOutput();
// Waits until all output is in the log, or for a short time if a helper still holds the pipe open.
// Call this before the process ends.
void FlushHelperOutput();

}  // namespace stasis::api
