// What helpers of a worker may say on their stderr (the driver's library does, for one), as lines
// of the log.
#pragma once

#include "base/fd.h"
#include "base/result.h"

namespace stasis::service {

// From here on this process's stderr, and so that of each helper which it starts, is a pipe that a
// thread of its own reads. At most so many lines of so many bytes are kept.
inline constexpr int kMaxHelperLines = 200;
inline constexpr size_t kMaxHelperLineBytes = 1024;
Status ListenToHelpers();
// Before the process ends: what was said is in the log, unless a helper that goes on keeps us.
void HearHelpersOut();

}  // namespace stasis::service
