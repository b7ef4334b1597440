// flock(2) with a deadline.
#pragma once

#include "base/deadline.h"

namespace stasis {

// The exclusive lock of the open file behind `fd`, if nobody else holds it.
bool TryLock(int fd);
// False when the deadline passes first.
bool LockUntil(int fd, const Deadline& deadline);

}  // namespace stasis
