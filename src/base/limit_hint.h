// Resource limits of this process, for hints to the user. A helper process inherits them, so a
// helper that failed ran under the same limits.
#pragma once

#include <string>

namespace stasis {

// Returns ", which is N" for a soft limit (RLIMIT_*), or an empty string if there is none. The text
// also names this program, unless it is the command that the user typed, because a daemon's worker
// has other limits than the caller.
std::string LimitText(int resource);

// Returns a hint for a helper that ended without a message or could not get memory: the limit that
// is the likely reason. Empty if no limit is set that a GPU driver may exceed.
std::string LikelyLimitHint();

}  // namespace stasis
