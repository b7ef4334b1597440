// One step for each of several, all at the same time.
#pragma once

#include <functional>

#include "base/result.h"

namespace stasis::coordinator {

// Calls `step` with 0 … count - 1, each on a thread of its own unless there is only one, and waits
// for all of them. The error is that of the least number.
Status InParallel(size_t count, const std::function<Status(size_t)>& step);

}  // namespace stasis::coordinator
